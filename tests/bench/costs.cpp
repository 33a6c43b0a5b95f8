// What a strategy's cost() says of a configuration, with the activations of the model's blocks measured.
//
//   build/tests/bench/costs RANKS < RESOLVED.json     (summary.json has the resolved configuration under "config")
//
// Prints JSON: blocks, as described, and of each rank the bytes of parameters, gradients, moments, buffers and activations.
// A micro-batch of one rank goes forward through the whole model on this thread, whose allocations the allocator tells: a
// block's activations are what is left behind its forward, its outputs counted with whoever takes them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <iterator>

#include "core/builtins.h"
#include "core/data/dataset.h"
#include "core/single_communicator.h"
#include "launch/catalogues.h"
#include "models/registry.h"
#include "strategies/parts/model_part.h"
#include "strategies/parts/replicated_entry.h"
#include "strategies/registry.h"

namespace {

using namespace convoy;

// Bytes that this thread holds, as the CPU's allocator tells.
class HeldBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, at::Device) override { held_ += size; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held() const { return held_; }

 private:
  int64_t held_ = 0;
};

// Of tensors that want a gradient: the others are the batch's.
int64_t bytes_of(const TensorList& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.requires_grad()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

struct Measured {
  int64_t begin = 0, end = 0;  // bytes held in front of the forward and behind it
  int64_t inputs = 0, outputs = 0;
};

class MeasuredBlock : public Block {
 public:
  MeasuredBlock(BlockPtr inner, const HeldBytes& held, Measured& into) : held_(held), into_(into) {
    inner_ = register_module("inner", std::move(inner));
  }
  TensorList forward(const TensorList& inputs) override {
    into_.begin = held_.held();
    TensorList outputs = inner_->forward(inputs);
    into_.end = held_.held();
    into_.inputs = bytes_of(inputs);
    into_.outputs = bytes_of(outputs);
    return outputs;
  }

 private:
  BlockPtr inner_;
  const HeldBytes& held_;
  Measured& into_;
};

// The model, with its blocks watched.
class MeasuredModel : public Model {
 public:
  MeasuredModel(ModelPtr inner, const HeldBytes& held)
      : inner_(std::move(inner)), held_(held), measured_(static_cast<size_t>(inner_->blocks())) {}
  std::vector<Measured>& measured() const { return measured_; }

  int64_t blocks() const override { return inner_->blocks(); }
  std::string block_name(int64_t index) const override { return inner_->block_name(index); }
  BlockPtr block(int64_t index, Layers& layers) const override {
    return std::make_shared<MeasuredBlock>(inner_->block(index, layers), held_, measured_[static_cast<size_t>(index)]);
  }
  TensorList inputs(const Batch& batch) const override { return inner_->inputs(batch); }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    return inner_->examples(outputs, batch);
  }
  std::string default_loss() const override { return inner_->default_loss(); }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    return inner_->metrics(outputs, batch, layers);
  }

 private:
  ModelPtr inner_;
  const HeldBytes& held_;
  mutable std::vector<Measured> measured_;
};

// Fills in what backward keeps and hands on of a row, by a micro-batch of `rows` rows.
void measure(const RunConfig& config, const Registry& registry, const Dataset& data, ModelPtr model, int64_t rows,
             Description& description) {
  const auto held = std::make_shared<HeldBytes>();
  const c10::DebugInfoGuard told(c10::DebugInfoKind::PROFILER_STATE, held);
  const auto watched = std::make_shared<MeasuredModel>(model, *held);
  Context context;
  context.config = config;
  context.world = make_single_communicator();
  const std::string loss = config.loss.name.empty() ? model->default_loss() : config.loss.name;
  ModelPart part(context, watched, registry.losses.make(loss, config.loss.options));
  Batch batch = data.gather_once(Split::train, at::arange(rows), 0);
  batch.global_rows = batch.nominal_rows = rows;
  const Loss kept = part.loss(part.forward(batch, 0), batch);
  std::vector<Measured>& measured = watched->measured();
  measured.back().end = held->held();  // with what the loss keeps, and without the outputs themselves
  measured.back().outputs = 0;
  for (size_t block = 0; block < measured.size(); ++block) {
    const Measured& bytes = measured[block];
    description.blocks[block].row_saved_bytes = (bytes.end - bytes.begin - bytes.outputs + bytes.inputs) / rows;
    description.blocks[block].row_output_bytes = bytes.outputs / rows;
  }
}

Registry registry_of_all() {
  Registry registry;
  registry.catalogues = all_catalogues();
  register_core(registry);
  register_models(registry);
  register_strategies(registry);
  return registry;
}

Json to_json(const RankCost& cost) {
  return {{"parameters", cost.parameter_bytes},
          {"gradients", cost.gradient_bytes},
          {"moments", cost.moment_bytes},
          {"buffers", cost.buffer_bytes},
          {"activations", cost.activation_bytes},
          {"bytes",
           cost.parameter_bytes + cost.gradient_bytes + cost.moment_bytes + cost.buffer_bytes + cost.activation_bytes}};
}

int run(int ranks) {
  at::set_num_threads(1);  // so that this thread makes every allocation
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  const RunConfig config = RunConfig::from_resolved(Json::parse(text));
  const Registry registry = registry_of_all();
  const StrategyEntry& strategy = strategy_entry(config.strategy.name);
  Topology here;
  here.hosts.push_back({"here", {{0, 0, 0, {0}}}, {}, 0});
  PlanRequest request;
  request.ranks = ranks;
  const Job job = strategy.plan(config, here, request).jobs.front();

  const DatasetPtr data = registry.datasets.make(config.data.name, config.data.options, config.seed);
  const ModelPtr model = registry.models.make(config.model.name, config.model.options, data->schema());
  Description description = describe_model(*model, config.precision);
  const auto slices = static_cast<double>(config.resolved.at("strategy").value("micro_batches", 1));
  const double rows = std::ceil(rows_per_rank(job.config, job.mesh.degree("data")) / slices);
  measure(config, registry, *data, model, std::max<int64_t>(1, static_cast<int64_t>(rows)), description);

  Json costs = Json::array();
  for (const RankCost& cost : strategy.cost(job, description)) costs.push_back(to_json(cost));
  std::cout << Json{{"model", to_json(description)}, {"ranks", costs}}.dump() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::atoi(argv[1]) < 1) {
    std::cerr << "usage: costs RANKS < RESOLVED.json\n";
    return 64;
  }
  try {
    return run(std::atoi(argv[1]));
  } catch (const std::exception& error) {
    std::cerr << "costs: " << error.what() << '\n';
    return 70;
  }
}
