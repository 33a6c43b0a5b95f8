// fsdp: ranks of the axis `data` train on their shares of each batch. Optimizer state, gradients and parameters are
// sharded over them.

#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/sharded.h"
#include "strategies/plans/options/sparse_embeddings.h"
namespace convoy {
namespace {

Plan plan_fsdp(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const std::vector<std::string> left_out = check_shard_effects(config.strategy.options);
  check_sparse_embeddings(config, false);
  Plan made = plan_data_axis(config, topology, request);
  made.warnings.insert(made.warnings.end(), left_out.begin(), left_out.end());
  return made;
}

}  // namespace

StrategyEntry fsdp_entry() {
  StrategyEntry entry;
  entry.name = "fsdp";
  entry.help =
      "each rank with its share of the batch; optimizer state, gradients and parameters are sharded (ZeRO 1 to 3)";
  entry.options = joined({sharded_data_options(), {sync_option(), micro_batches_option()}, memory_options()});
  entry.plan = plan_fsdp;
  entry.cost = [](const JobPlan& job, const ModelDescription& description) { return sharded_costs(job, description); };
  entry.state_of_lost_rank = state_of_lost_shard;
  return entry;
}

}  // namespace convoy
