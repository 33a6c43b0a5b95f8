// single: one rank on one device; the reference that every other strategy is held against.
#include "core/text.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/rows/row_tables_entry.h"
#include "strategies/parts/step_graph_entry.h"

namespace convoy {
namespace {

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  if (request.ranks > 1)
    throw ConfigError(Mark{}, "launch.ranks",
                      str(request.ranks,
                          " ranks were asked for, and strategy single has one rank; use strategy ddp, or type "
                          "--ranks 1"));
  check_row_tables(config, true);
  check_graph(config, topology);
  return plan_replicas(config, topology, request, 1);
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  return replica_costs(job, description, true);
}

std::string tables(const Job& job, const Description& description) { return row_text(job, description); }

}  // namespace

StrategyEntry single_entry() {
  StrategyEntry entry;
  entry.name = "single";
  entry.help = "one rank on one device: nothing is sent";
  entry.options = {sync_option(), micro_batches_option(), graph_option()};
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = cost;
  entry.tables = tables;
  return entry;
}

}  // namespace convoy
