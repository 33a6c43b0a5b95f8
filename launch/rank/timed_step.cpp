#include "launch/rank/timed_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>

#include "core/data/few_rows.h"
#include "core/data/samples.h"
#include "core/model.h"
#include "core/single_communicator.h"
#include "core/temporary.h"
#include "core/wrapped_model.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

class TimedBlock : public Block {
 public:
  TimedBlock(BlockPtr inner, std::shared_ptr<std::vector<BlockTime>> times, size_t place)
      : times_(std::move(times)), place_(place) {
    inner_ = register_module("inner", std::move(inner));
  }
  TensorList forward(const TensorList& inputs) override {
    const Clock::time_point start = Clock::now();
    TensorList outputs = inner_->forward(inputs);
    (*times_)[place_].seconds += seconds_between(start, Clock::now());
    return outputs;
  }

 private:
  BlockPtr inner_;
  std::shared_ptr<std::vector<BlockTime>> times_;
  size_t place_;
};

// A step tells where it is, here to nobody: the file has no name any more.
std::shared_ptr<StateFile> unread_state() {
  const std::filesystem::path path = temporary_folder() / str("convoy-calibration-", random_token(), ".state");
  auto state = std::make_shared<StateFile>(path.string());
  std::error_code none;
  std::filesystem::remove(path, none);
  return state;
}

// Some blocks of the model, or all, with a watch on each.
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
  config_.data = few_rows(config.data);
  data_ = registry.datasets.make(config_.data.name, config_.data.options, data_seed(config.data.options, config.seed));
  for (const Options& transform : config.data.options.sections("transforms"))
    transforms_.push_back(registry.transforms.make(transform.text("name"), transform));
  const ModelPtr model = registry.models.make(config.model.name, config.model.options, data_->schema());
  const std::string loss = config.loss.name.empty() ? model->default_loss() : config.loss.name;
  context_.devices = {device};
  context_.device_cores.emplace_back();
  context_.threads = threads;
  context_.world = make_single_communicator();
  context_.config = config;
  context_.state = unread_state();
  context_.steps_per_epoch = context_.total_steps = std::numeric_limits<int32_t>::max();
  strategy_ = registry.strategies.make(config.strategy.name, config.strategy.options);
  strategy_->setup(context_, std::make_shared<TimedModel>(model, times_, blocks),
                   registry.losses.make(loss, config.loss.options));
}

TimedStep::~TimedStep() = default;

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
  CONVOY_CHECK(result.updated == updates, "a step was to update: ", updates, ", and did: ", result.updated);
  // As the trainer does with metrics and the flag, before which its next step cannot begin.
  if (result.updated && device_.is_cpu() && !result.finite.all().item<bool>())
    throw Error(Failure::training,
                str("the loss is not finite at step ", number_ - 1, " of the measurement; try a smaller optimizer.lr"));
  synchronise();
  return seconds_between(start, Clock::now());
}

std::vector<BlockTime> TimedStep::block_times() const { return device_.is_cpu() ? *times_ : std::vector<BlockTime>{}; }

void TimedStep::synchronise() const {
  if (device_.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device_.index());
}

}  // namespace convoy
