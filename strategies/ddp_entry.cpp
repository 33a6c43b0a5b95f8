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

Option real(const char* name, const char* help, double fallback) {
  Option option;
  option.name = name;
  option.type = OptionType::real;
  option.help = help;
  option.fallback = fallback;
  option.unit = "MiB";
  option.minimum = 0;
  option.exclusive_minimum = true;
  return option;
}

}  // namespace

StrategyEntry ddp_entry() {
  Option overlap;
  overlap.name = "overlap";
  overlap.type = OptionType::boolean;
  overlap.help = "reduce a bucket as soon as its gradients are ready, while backward goes on";
  overlap.fallback = true;

  Option buffers;
  buffers.name = "buffers";
  buffers.type = OptionType::choice;
  buffers.help = "batch norm's running figures after an update: rank 0's, their mean, or each rank its own";
  buffers.fallback = "broadcast";
  buffers.choices = {"broadcast", "mean", "local"};

  StrategyEntry entry;
  entry.name = "ddp";
  entry.help = "the whole model on every rank, each with its share of the batch; gradients are all-reduced";
  entry.options = {real("bucket_cap_mb", "gradients that are reduced by one message", 25),
                   real("first_bucket_mb", "the first one, small so that sending starts early", 1), overlap, buffers,
                   sync_option()};
  entry.plan = plan;
  entry.cost = cost;
  return entry;
}

}  // namespace convoy
