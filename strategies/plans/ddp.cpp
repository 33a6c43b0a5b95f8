// ddp: every rank holds the whole model and computes on its share of each batch. Gradients are all-reduced in buckets.

#include "strategies/plans/catalogue.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/costs/sparse_cost.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
namespace convoy {
namespace {

Plan plan_ddp(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  check_sparse_embeddings(config, true);
  return plan_data_axis(config, topology, request);
}

std::string ddp_schedule(const JobPlan& job, const ModelDescription& description) {
  const auto ranks = int(job.ranks.size());
  const ModelDescription dense = without(description, touched_tables(job.config, description, ranks));
  return sync_text(job.config, dense, ranks);
}

}  // namespace

StrategyEntry ddp_entry() {
  StrategyEntry entry;
  entry.name = "ddp";
  entry.help = "a replica of the model on every rank, each with its share of the batch; gradients are all-reduced";
  entry.options = joined(
      {replicated_data_options(), {replica_sync_option(), micro_batches_option(), graph_option()}, memory_options()});
  entry.plan = plan_ddp;
  entry.cost = replica_costs;
  entry.report = ddp_schedule;
  entry.sparse_embeddings = true;
  entry.replicas = true;
  entry.state_of_lost_rank = state_of_lost_replica;
  return entry;
}

}  // namespace convoy
