// Prints a strategy's cost() of a configuration, with measured activations of the model's blocks.
//
//   build/tests/costs RANKS [ROWS] < RESOLVED.json     (summary.json has the resolved configuration under "config")
//
// Prints JSON: blocks, as described; for each rank the bytes that it sends in a step, and its bytes of parameters,
// gradients, moments, buffers and activations. A micro-batch of one rank, or of ROWS, passes through the whole model on
// this thread to measure activations.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <iterator>

#include "core/data/catalogue/declared_schema.h"
#include "core/data/dataset.h"
#include "core/registry.h"
#include "launch/prepare/describe.h"
#include "models/registry.h"
#include "strategies/common/memory/block_activations.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/registry.h"

namespace {

using namespace convoy;

Registry registry_of_all() {
  Registry registry;
  registry.catalogues = all_catalogues();
  register_core(registry);
  register_models(registry);
  register_strategies(registry);
  return registry;
}

Json to_json(const RankCost& cost) {
  return {{"sent", cost.bytes_sent_per_step},
          {"parameters", cost.parameter_bytes},
          {"gradients", cost.gradient_bytes},
          {"moments", cost.moment_bytes},
          {"buffers", cost.buffer_bytes},
          {"activations", cost.activation_bytes},
          {"owned", cost.owned_bytes},
          {"bytes",
           cost.parameter_bytes + cost.gradient_bytes + cost.moment_bytes + cost.buffer_bytes + cost.activation_bytes}};
}

int run(int ranks, int64_t described) {
  at::set_num_threads(1);  // so that this thread makes every allocation
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  const RunConfig config = RunConfig::from_resolved(Json::parse(text));
  const Registry registry = registry_of_all();
  const StrategyEntry& strategy = strategy_entry(config.strategy.name);
  Topology here;
  here.hosts.push_back({"here", {}, {}, 0});
  for (int core = 0; core < 64; ++core) here.hosts.back().cores.push_back({core, 0, 0, {core}});
  PlanRequest request;
  request.ranks = ranks;
  const JobPlan job = strategy.plan(config, here, request).jobs.front();

  const DatasetPtr data =
      registry.datasets.make(config.data.name, config.data.options, data_seed(config.data.options, config.seed));
  const ModelPtr model = registry.models.make(config.model.name, config.model.options, data->schema());
  ModelDescription description = describe_model(*model, config.precision);
  const auto slices = static_cast<double>(config.resolved.at("strategy").value("micro_batches", 1));
  const double rows = described > 0 ? static_cast<double>(described)
                                    : std::ceil(rows_per_rank(job.config, job.mesh.degree("data")) / slices);
  Batch batch = data->gather_once(Split::train, at::arange(std::max<int64_t>(1, static_cast<int64_t>(rows))), 0);
  batch.global_rows = batch.nominal_rows = batch.rows;
  const std::string loss = config.loss.name.empty() ? model->default_loss() : config.loss.name;
  measure_activations(config, model, registry.losses.make(loss, config.loss.options), batch, description);

  measure_lookups(config, model, registry.losses.make(loss, config.loss.options), *data, description);

  Json costs = Json::array();
  for (const RankCost& cost : strategy.cost(job, description)) costs.push_back(to_json(cost));
  std::cout << Json{{"model", description}, {"ranks", costs}}.dump() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3 || std::atoi(argv[1]) < 1) {
    std::cerr << "usage: costs RANKS [ROWS] < RESOLVED.json\n";
    return 64;
  }
  try {
    return run(std::atoi(argv[1]), argc == 3 ? std::atoi(argv[2]) : 0);
  } catch (const std::exception& error) {
    std::cerr << "costs: " << error.what() << '\n';
    return 70;
  }
}
