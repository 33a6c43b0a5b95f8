// fsdp: ranks of the axis `data` train on their shares of each batch and divide the optimizer's state, gradients and
// parameters among them.
#include "strategies/parts/effects_entry.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/rows/row_tables_entry.h"
#include "strategies/parts/shards/sharded_entry.h"

namespace convoy {
namespace {

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const std::vector<std::string> left_out = check_shard_effects(config.strategy.options);
  check_row_tables(config, false);
  Plan made = plan_data_axis(config, topology, request);
  made.warnings.insert(made.warnings.end(), left_out.begin(), left_out.end());
  return made;
}

}  // namespace

StrategyEntry fsdp_entry() {
  StrategyEntry entry;
  entry.name = "fsdp";
  entry.help =
      "each rank with its share of the batch and of the optimizer's state, gradients and parameters (ZeRO 1 to 3)";
  entry.options = sharded_data_options();
  entry.options.push_back(sync_option());
  entry.options.push_back(micro_batches_option());
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = [](const Job& job, const Description& description) { return sharded_costs(job, description); };
  return entry;
}

}  // namespace convoy
