// ddp: every rank holds the whole model and its share of each batch; gradients are all-reduced in buckets.
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/replicas/sync_entry.h"
#include "strategies/parts/rows/row_tables_entry.h"
#include "strategies/parts/step_graph_entry.h"

namespace convoy {
namespace {

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  check_row_tables(config, true);
  check_graph(config, topology);
  Plan made = plan_data_axis(config, topology, request);
  for (std::string& line : row_warnings(config)) made.warnings.push_back(std::move(line));
  return made;
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  return replica_costs(job, description, true);
}

std::string schedule(const Job& job, const Description& description) {
  const auto ranks = static_cast<int>(job.ranks.size());
  const Description dense = without(description, touched_tables(job.config, description, ranks));
  return sync_text(job.config, dense, ranks);
}

std::string tables(const Job& job, const Description& description) { return row_text(job, description); }

}  // namespace

StrategyEntry ddp_entry() {
  StrategyEntry entry;
  entry.name = "ddp";
  entry.help = "the whole model on every rank, each with its share of the batch; gradients are all-reduced";
  entry.options = replicated_data_options();
  entry.options.push_back(replica_sync_option());
  entry.options.push_back(micro_batches_option());
  entry.options.push_back(graph_option());
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = cost;
  entry.schedule = schedule;
  entry.tables = tables;
  return entry;
}

}  // namespace convoy
