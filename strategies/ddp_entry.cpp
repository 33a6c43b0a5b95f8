// ddp: every rank holds the whole model and its share of each batch; gradients are all-reduced in buckets.
#include "strategies/parts/replicated_entry.h"

namespace convoy {
namespace {

constexpr double mib = 1024 * 1024;

Plan plan(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  int ranks = request.ranks;
  if (ranks == 0 && on_gpus(config, topology))
    for (const Host& host : topology.hosts) ranks += static_cast<int>(host.gpus.size());
  return plan_replicas(config, topology, request, ranks == 0 ? 1 : ranks);
}

std::vector<RankCost> cost(const Job& job, const Description& description) {
  const Options options(job.config.at("strategy"));
  const BucketSizes buckets{options.real("first_bucket_mb") * mib, options.real("bucket_cap_mb") * mib};
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
  entry.plan = plan;
  entry.cost = cost;
  return entry;
}

}  // namespace convoy
