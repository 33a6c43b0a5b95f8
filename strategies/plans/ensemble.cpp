// ensemble: many small models of one kind at once, with different seeds, rows and learning rates.
#include <algorithm>
#include <map>

#include "core/base/text.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/costs/replica_cost.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/ensemble.h"

namespace convoy {
namespace {

int devices_here(const RunConfig& config, const Topology& topology, bool one_host) {
  const bool gpus = on_gpus(config, topology);
  size_t count = 0;
  for (const Host& host : topology.hosts) {
    count += gpus ? host.gpus.size() : host.cores.size();
    if (one_host) break;
  }
  return std::max(1, int(count));
}

bool threads_may_exchange_by(const std::string& backend) {
  return backend == "auto" || backend == "local" || backend == "nccl";
}

bool as_threads(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const EnsembleMode how = ensemble_options(config.strategy.options).how;
  const bool spread = topology.hosts.size() > 1 || (!request.rank_hosts.empty() && request.ranks > 1);
  if (how == EnsembleMode::threads && spread)
    throw ConfigError(SourceLocation{}, "strategy.how",
                      "threads are of one process on one host, and the job was started once per rank by a launcher, or "
                      "on several hosts; start it alone, or set how: processes");
  return how == EnsembleMode::threads ||
         (how == EnsembleMode::automatic && !spread && threads_may_exchange_by(config.backend));
}

int64_t threads_on_a_gpu(const JobPlan& job) {
  std::map<int, int64_t> threads;
  int64_t most = 0;
  for (const RankPlan& rank : job.ranks)
    for (const DevicePlan& device : rank.devices)
      if (device.kind == DevicePlan::Kind::gpu) most = std::max(most, ++threads[device.gpu]);
  return most;
}

// One rank per device, at most one per member. `stacked` on a CPU uses one rank unless more are requested.
int ranks_of(const RunConfig& config, const Topology& topology, const PlanRequest& request, bool threads) {
  const EnsembleOptions options = ensemble_options(config.strategy.options);
  const int64_t members = options.members;
  if (request.ranks > members)
    throw ConfigError(SourceLocation{}, "launch.ranks", request.ranks,
                      " ranks were requested, but strategy.members is ", members,
                      "; a rank without a member would have nothing to do: take at most ", members);
  if (request.ranks > 0) return request.ranks;
  const bool one = options.how == EnsembleMode::stacked && !on_gpus(config, topology);
  return one ? 1 : int(std::min<int64_t>(members, devices_here(config, topology, threads)));
}

Plan plan_ensemble(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  members_of(config);  // throws if options contradict each other
  const bool threads = as_threads(config, topology, request);
  if (threads && !threads_may_exchange_by(config.backend))
    throw ConfigError(SourceLocation{}, "backend", "is ", config.backend,
                      ", and strategy.how: threads makes threads of one process, which use backend local; leave it "
                      "auto, or set how: processes");
  PlanRequest wanted = request;
  wanted.ranks = ranks_of(config, topology, request, threads);
  check_sparse_embeddings(config, false);
  // Ranks may share a GPU: processes run in turn or use MPS; threads use separate streams.
  const EnsembleMode how = ensemble_options(config.strategy.options).how;
  const bool share_gpus = how == EnsembleMode::processes || how == EnsembleMode::threads;
  Plan made = plan_on_mesh(config, topology, wanted, Mesh({{"members", wanted.ranks}}), share_gpus);
  if (!threads) return made;
  JobPlan& job = made.jobs.front();
  if (job.backend != "nccl") job.backend = "local";
  job.processes = {{0, {}}};
  for (RankPlan& rank : job.ranks) {
    rank.process = 0;
    job.processes.front().ranks.push_back(rank.rank);
  }
  if (threads_on_a_gpu(job) > 1)
    made.warnings.push_back(str("up to ", threads_on_a_gpu(job), " threads share a GPU, each with a separate stream"));
  return made;
}

// True if a CPU rank trains its members one after another and not as a stack (strategies/ensemble/stacked_members.cpp).
bool one_after_another(const EnsembleOptions& options, const RankPlan& rank, const ModelDescription& description) {
  return options.how == EnsembleMode::automatic && options.convolutions == Convolutions::automatic &&
         rank.devices.front().kind != DevicePlan::Kind::gpu &&
         std::any_of(description.blocks.begin(), description.blocks.end(),
                     [](const BlockDescription& block) { return block.convolutions > 0; });
}

// Cost per rank with k members: k times that of a run of one member, but a rank that trains them one after another has
// the activations of one at a time. Only metrics of evaluations are sent.
std::vector<RankCost> ensemble_cost(const JobPlan& job, const ModelDescription& description) {
  JobPlan alone = job;
  alone.ranks.resize(1);
  const RankCost one = replica_costs(alone, description).front();
  const EnsembleOptions options = ensemble_options(job.config.strategy.options);
  std::vector<RankCost> costs;
  for (const RankPlan& rank : job.ranks) {
    const auto [first, last] = members_of_rank(options.members, rank.rank, int(job.ranks.size()));
    const auto held = double(last - first);
    RankCost mine = one;
    for (double* bytes : {&mine.parameter_bytes, &mine.gradient_bytes, &mine.moment_bytes, &mine.buffer_bytes,
                          &mine.owned_bytes, &mine.work.span, &mine.work.busy, &mine.work.updated})
      *bytes *= held;
    if (!one_after_another(options, rank, description)) mine.activation_bytes *= held;
    costs.push_back(mine);
  }
  return costs;
}

}  // namespace

StrategyEntry ensemble_entry() {
  StrategyEntry entry;
  entry.name = "ensemble";
  entry.help = "many small models at once, each with its own seed, rows and learning rate; their vote is evaluated";
  entry.options = ensemble_section_options();
  entry.Entry::check = check_members;
  entry.plan = plan_ensemble;
  entry.cost = ensemble_cost;
  entry.members = ensemble_member_functions();
  return entry;
}

}  // namespace convoy
