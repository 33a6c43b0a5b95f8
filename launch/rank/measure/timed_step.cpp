#include "launch/rank/measure/timed_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <algorithm>
#include <limits>
#include <numeric>

#include "api/components.h"
#include "core/base/log.h"
#include "core/communicator.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/rows.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/model.h"
#include "core/model_interface.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

constexpr int64_t least = 3, most = 400;  // number of exchanges

// Repeats one kind of exchange on existing tensors.
class Exchanger {
 public:
  Exchanger(Communicator& group, Exchange kind, int64_t bytes, at::Device device)
      : group_(group), kind_(kind), device_(device) {
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const int64_t elements = std::max<int64_t>(1, bytes / 4);
    mine_ = at::ones({elements}, options);
    if (kind == Exchange::gather || kind == Exchange::scatter) all_ = at::ones({group.size(), elements}, options);
    if (kind == Exchange::send) all_ = at::ones({elements}, options);
  }

  // Writes the tensors on this rank's core, as a step would.
  void touch() {
    mine_.fill_(1);
    if (kind_ == Exchange::scatter) all_.fill_(1);
    synchronise(device_);
  }

  void once() {
    const CallOptions call{"calibration", {}};
    switch (kind_) {
      case Exchange::all_reduce:
        group_.all_reduce(mine_, ReduceOp::sum, call)->wait();
        break;
      case Exchange::gather:
        group_.all_gather(all_, mine_, call)->wait();
        break;
      case Exchange::scatter:
        group_.reduce_scatter(mine_, all_, ReduceOp::sum, call)->wait();
        break;
      case Exchange::send:
        there_and_back(call);
        break;
    }
    synchronise(device_);
  }

 private:
  void there_and_back(const CallOptions& call) {
    if (group_.rank() > 1) return;
    const int peer = 1 - group_.rank();
    if (group_.rank() == 0) group_.send(mine_, peer, call)->wait();
    group_.receive(all_, peer, call)->wait();
    if (group_.rank() == 1) group_.send(mine_, peer, call)->wait();
  }

  Communicator& group_;
  Exchange kind_;
  at::Device device_;
  at::Tensor mine_, all_;
};

}  // namespace

void synchronise(const at::Device& device) {
  if (device.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device.index());
}

ExchangeTimes time_exchange(Communicator& group, Exchange kind, int64_t bytes, double limit, at::Device device) {
  Exchanger exchanger(group, kind, bytes, device);
  exchanger.once();  // connects, and faults memory in
  Clock::time_point start = Clock::now();
  exchanger.touch();
  exchanger.once();
  // The slowest rank's estimate determines the number of exchanges on all ranks.
  at::Tensor count =
      at::full({1}, limit / std::max(1e-6, seconds_since(start)), at::TensorOptions(at::kDouble).device(device));
  group.all_reduce(count, ReduceOp::min, {"calibration", {}})->wait();
  const auto times = std::clamp(static_cast<int64_t>(count.cpu().item<double>()), least, most);
  ExchangeTimes result;
  double busy = 0, all = 0;
  for (int64_t number = 0; number < times; ++number) {
    exchanger.touch();
    const double before = process_cpu_seconds();
    start = Clock::now();
    exchanger.once();
    const double took = seconds_since(start);
    busy += process_cpu_seconds() - before;
    all += took;
    result.seconds.push_back(kind == Exchange::send ? took / 2 : took);
  }
  result.busy = all > 0 ? std::min(1.0, busy / all) : 0;
  return result;
}

namespace {

constexpr int64_t few = 2;  // rows

LoaderOptions loader_options(const RunConfig& config) {
  LoaderOptions options;
  options.seed = data_seed(config.data.options, config.seed);
  return options;
}

}  // namespace

std::optional<EvaluationMetrics> evaluation_metrics(const RunConfig& config, const Registry& registry) {
  const Components components = make_components(config, registry);
  const auto names_of = [&](Loader loader) {
    return metric_names(config, components.model, components.loss, *loader.next());
  };
  EvaluationMetrics metrics;
  try {
    if (components.data->size(Split::evaluate) > 0)
      metrics.evaluated = names_of(Loader(components.data, components.transforms, few, loader_options(config)));
    if (can_evaluate_training_rows(*components.data)) {
      const int64_t rows = std::min<int64_t>(few, components.data->size(Split::train));
      const Sampler sampler(components.data->size(Split::train), rows, config.seed);
      metrics.held_out =
          names_of(Loader(components.data, components.transforms, sampler, 0, 1, loader_options(config)));
    }
  } catch (const std::exception& error) {
    log::info(str("a few rows were not evaluated: ", error.what()));
    return std::nullopt;
  }
  return metrics;
}

namespace {

class TimedBlock : public Block {
 public:
  TimedBlock(BlockPtr inner, std::shared_ptr<std::vector<BlockTime>> times, size_t index)
      : times_(std::move(times)), index_(index) {
    inner_ = register_module("inner", std::move(inner));
  }
  TensorList forward(const TensorList& inputs) override {
    const Clock::time_point start = Clock::now();
    TensorList outputs = inner_->forward(inputs);
    (*times_)[index_].seconds += seconds_since(start);
    return outputs;
  }

 private:
  BlockPtr inner_;
  std::shared_ptr<std::vector<BlockTime>> times_;
  size_t index_;
};

// Returns a state file without a name: a step reports its position, which nothing reads here.
std::shared_ptr<StateFile> unread_state() {
  std::shared_ptr<StateFile> state;
  with_unnamed_file([&](const std::string& path) { state = std::make_shared<StateFile>(path); });
  return state;
}

// Selects blocks of the model, or all, and times the forward of each.
class TimedModel : public WrappedModel {
 public:
  TimedModel(ModelPtr inner, std::shared_ptr<std::vector<BlockTime>> times, std::vector<int64_t> blocks)
      : WrappedModel(std::move(inner)), times_(std::move(times)), blocks_(std::move(blocks)) {
    if (blocks_.empty()) {
      blocks_.resize(static_cast<size_t>(wrapped().blocks()));
      std::iota(blocks_.begin(), blocks_.end(), 0);
    }
    for (const int64_t index : blocks_) times_->push_back({wrapped().block_name(index)});
  }
  int64_t blocks() const override { return static_cast<int64_t>(blocks_.size()); }
  std::string block_name(int64_t index) const override { return wrapped().block_name(inner_index(index)); }
  BlockPtr block(int64_t index, Layers& layers) const override {
    return std::make_shared<TimedBlock>(wrapped().block(inner_index(index), layers), times_,
                                        static_cast<size_t>(index));
  }

 private:
  int64_t inner_index(int64_t index) const { return blocks_.at(static_cast<size_t>(index)); }

  std::shared_ptr<std::vector<BlockTime>> times_;
  std::vector<int64_t> blocks_;
};

}  // namespace

TimedStep::TimedStep(const RunConfig& config, const Registry& registry, at::Device device, int threads,
                     const std::vector<int64_t>& blocks)
    : config_(config), device_(device), times_(std::make_shared<std::vector<BlockTime>>()) {
  const Components components = make_components(config, registry);
  data_ = components.data;
  transforms_ = components.transforms;
  context_.devices = {device};
  context_.device_cores.emplace_back();
  context_.threads = threads;
  context_.world = make_single_communicator();
  context_.config = config;
  context_.state = unread_state();
  context_.steps_per_epoch = context_.total_steps = std::numeric_limits<int32_t>::max();
  strategy_ = registry.strategies.make(config.strategy.name, config.strategy.options);
  strategy_->setup(context_, std::make_shared<TimedModel>(components.model, times_, blocks), components.loss);
}

int64_t TimedStep::batches_of(int64_t rows) {
  const int64_t size = data_->size(Split::train);
  const int64_t taken = std::clamp<int64_t>(rows, 1, size);
  const Sampler sampler(size, taken, config_.seed);
  LoaderOptions options = LoaderOptions::from(config_.data.options, config_.seed);
  options.device = device_;
  loader_.reset();
  loader_ = std::make_unique<Loader>(data_, transforms_, sampler, 0, std::numeric_limits<int32_t>::max(), options);
  return taken;
}

double TimedStep::step(bool updates) {
  const Clock::time_point start = Clock::now();
  StepInput input{*loader_->next(), number_++, updates};
  const StepResult result = strategy_->step(input);
  metrics_.add(result.metrics);
  CONVOY_CHECK(result.updated == updates, "expected updated = ", updates, ", got ", result.updated);
  // The trainer reads metrics and this flag before its next step, so the timed step waits for it too.
  if (result.updated && device_.is_cpu() && !result.finite.all().item<bool>())
    throw Error(Failure::training, "the loss is not finite at step ", number_ - 1,
                " of the measurement; try a smaller optimizer.lr");
  synchronise(device_);
  return seconds_since(start);
}

std::vector<BlockTime> TimedStep::block_times() const { return device_.is_cpu() ? *times_ : std::vector<BlockTime>{}; }

}  // namespace convoy
