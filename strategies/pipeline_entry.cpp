// pipeline: each rank has consecutive blocks of the model, and micro-batches go through them.
#include "strategies/parts/stages/pipeline_entry.h"

#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/rows/row_tables_entry.h"

namespace convoy {
namespace {

constexpr int default_ranks = 2;

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const Options& options = config.strategy.options;
  int ranks = request.ranks;
  if (ranks == 0) ranks = listed_ranks(options);
  if (ranks == 0 && on_gpus(config, topology))
    for (const Host& host : topology.hosts) ranks += static_cast<int>(host.gpus.size());
  if (ranks == 0) ranks = default_ranks;
  check_pipeline(options, ranks);
  check_row_tables(config, false);
  return plan_on_mesh(config, topology, request, Mesh({{"pipeline", ranks}}));
}

int stages_of(const Options& options, const Job& job) {
  return job.mesh.degree("pipeline") * static_cast<int>(chunks_of(options));
}

void check(const Job& job, const Description& description) {
  const RunConfig config = RunConfig::from_resolved(job.config);
  stage_ranges(config.strategy.options, stages_of(config.strategy.options, job), description);
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  const Options options(job.config.at("strategy"));
  const std::vector<BlockRange> stages = stage_ranges(options, stages_of(options, job), description);
  const PipelineShape shape = pipeline_shape(job);
  std::vector<RankCost> costs;
  for (int rank = 0; rank < shape.ranks; ++rank) costs.push_back(pipeline_cost(shape, stages, description, rank));
  return costs;
}

std::string schedule(const Job& job, const Description& description) { return pipeline_text(job, description); }

}  // namespace

StrategyEntry pipeline_entry() {
  StrategyEntry entry;
  entry.name = "pipeline";
  entry.help = "consecutive blocks on each rank; micro-batches go through them one behind the other";
  entry.options = pipeline_section_options();
  entry.options.push_back(pipeline_micro_batches_option());
  entry.options.push_back(sync_option());
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = cost;
  entry.check = check;
  entry.schedule = schedule;
  return entry;
}

}  // namespace convoy
