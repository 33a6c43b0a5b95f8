// pipeline: each rank has consecutive blocks of the model, and micro-batches flow through the ranks.

#include "strategies/plans/options/pipeline.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/sparse_embeddings.h"
namespace convoy {
namespace {

constexpr int default_ranks = 2;

Plan plan_pipeline(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const PipelineOptions options = pipeline_options(config.strategy.options);
  int ranks = request.ranks;
  if (ranks == 0) ranks = listed_ranks(options);
  if (ranks == 0 && on_gpus(config, topology))
    for (const Host& host : topology.hosts) ranks += int(host.gpus.size());
  if (ranks == 0) ranks = default_ranks;
  check_pipeline(options, ranks);
  check_sparse_embeddings(config, false);
  return plan_on_mesh(config, topology, request, Mesh({{"pipeline", ranks}}));
}

std::vector<std::string> check_pipeline_job(const JobPlan& job, const ModelDescription& description) {
  job_stages(job, description);
  return {};
}

std::vector<RankCost> pipeline_cost(const JobPlan& job, const ModelDescription& description) {
  return pipeline_costs(pipeline_shape(job), job_stages(job, description), description);
}

}  // namespace

StrategyEntry pipeline_entry() {
  StrategyEntry entry;
  entry.name = "pipeline";
  entry.help = "pipeline parallelism: consecutive blocks on each rank; micro-batches flow through the ranks";
  entry.options =
      joined({pipeline_section_options(), {pipeline_micro_batches_option(), sync_option()}, memory_options()});
  entry.plan = plan_pipeline;
  entry.cost = pipeline_cost;
  entry.check = check_pipeline_job;
  entry.report = pipeline_text;
  entry.state_of_lost_rank = state_of_lost_shard;
  return entry;
}

}  // namespace convoy
