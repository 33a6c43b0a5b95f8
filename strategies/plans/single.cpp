// single: one rank on one device. It is the reference strategy: all others are compared with it.
#include "core/base/text.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/sparse_embeddings.h"

namespace convoy {
namespace {

Plan plan_single(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  if (request.ranks > 1)
    throw ConfigError(SourceLocation{}, "launch.ranks", request.ranks,
                      " ranks were requested, and strategy single has one rank; use strategy ddp, or type "
                      "--ranks 1");
  check_sparse_embeddings(config, true);
  return plan_replicas(config, topology, request, 1);
}

}  // namespace

StrategyEntry single_entry() {
  StrategyEntry entry;
  entry.name = "single";
  entry.help = "one rank on one device, without communication";
  entry.options = joined({{sync_option(), micro_batches_option(), graph_option()}, memory_options()});
  entry.plan = plan_single;
  entry.cost = replica_costs;
  entry.sparse_embeddings = true;
  return entry;
}

}  // namespace convoy
