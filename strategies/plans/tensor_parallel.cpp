// tensor_parallel: one replica; its linear layers and embeddings are sharded over the ranks.

#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/tensor_group.h"
namespace convoy {
namespace {

Plan plan_tensor_parallel(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  int ranks = request.ranks;
  if (ranks == 0 && on_gpus(config, topology)) ranks = int(topology.hosts.front().gpus.size());
  ranks = ranks == 0 ? 1 : ranks;
  check_tensor_degree(config, ranks);
  check_sparse_embeddings(config, false);
  return plan_on_mesh(config, topology, request, Mesh({{"tensor", ranks}}));
}

std::vector<RankCost> tensor_parallel_cost(const JobPlan& job, const ModelDescription& description) {
  return std::vector<RankCost>(job.ranks.size(), tensor_group_cost(job, description));
}

}  // namespace

StrategyEntry tensor_parallel_entry() {
  StrategyEntry entry;
  entry.name = "tensor_parallel";
  entry.help = "one replica with linear layers and embeddings sharded over the ranks; activations are summed";
  entry.options = joined({tensor_options(), {sync_option(), micro_batches_option()}, memory_options()});
  entry.plan = plan_tensor_parallel;
  entry.cost = tensor_parallel_cost;
  entry.check = [](const JobPlan& job, const ModelDescription& description) {
    check_shards(job, description);
    return tensor_notes(job, description, "strategy.name");
  };
  entry.state_of_lost_rank = state_of_lost_shard;
  return entry;
}

}  // namespace convoy
