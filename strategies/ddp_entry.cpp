// ddp: every rank holds the whole model and its share of each batch; gradients are all-reduced in buckets.
#include "strategies/parts/replicated_entry.h"
#include "strategies/parts/row_tables_entry.h"

namespace convoy {
namespace {

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  check_row_tables(config, true);
  return plan_data_axis(config, topology, request);
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  const Options options(job.config.at("strategy"));
  const BucketSizes buckets = bucket_sizes(options, replicated_bytes(description));
  return replica_costs(job, description, buckets, options.section("sync").integer("every"));
}

}  // namespace

StrategyEntry ddp_entry() {
  StrategyEntry entry;
  entry.name = "ddp";
  entry.help = "the whole model on every rank, each with its share of the batch; gradients are all-reduced";
  entry.options = replicated_data_options();
  entry.options.push_back(sync_option());
  entry.options.push_back(micro_batches_option());
  for (const Option& option : memory_options()) entry.options.push_back(option);
  entry.plan = plan;
  entry.cost = cost;
  return entry;
}

}  // namespace convoy
