// tensor_parallel: one replica whose linear layers and embeddings the ranks share out.
#include "strategies/parts/rows/row_tables_entry.h"
#include "strategies/parts/tensor/tensor_group_entry.h"

namespace convoy {
namespace {

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  int ranks = request.ranks;
  if (ranks == 0 && on_gpus(config, topology)) ranks = static_cast<int>(topology.hosts.front().gpus.size());
  ranks = ranks == 0 ? 1 : ranks;
  check_tensor_degree(config, ranks);
  check_row_tables(config, false);
  return plan_on_mesh(config, topology, request, Mesh({{"tensor", ranks}}));
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  return tensor_costs(job, description, {}, 1);
}

}  // namespace

StrategyEntry tensor_parallel_entry() {
  StrategyEntry entry;
  entry.name = "tensor_parallel";
  entry.help = "one replica whose linear layers and embeddings the ranks share out; activations are summed";
  entry.options = tensor_options();
  entry.options.push_back(sync_option());
  entry.options.push_back(micro_batches_option());
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = cost;
  entry.check = check_cuts;
  entry.notes = [](const Job& job, const Description& description) {
    return tensor_notes(job, description, "strategy.name");
  };
  return entry;
}

}  // namespace convoy
