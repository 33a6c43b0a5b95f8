// launch.min_ranks: which jobs can continue without a rank.
#include "core/base/error.h"
#include "launch/prepare/prepare.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

void check_min_ranks(const PreparedRun& run, const JobPlan& job) {
  const RunConfig& config = run.config;
  const int64_t least = config.launch.min_ranks;
  if (least == 0 || !run.snapshots.is_null() || !run.arguments.bench.is_null() || !run.arguments.use.is_null()) return;
  const auto refuse = [&](const std::string& key, const std::string& reason) {
    throw ConfigError(location_of(config.resolved, key), key, reason);
  };
  const auto refuse_here = [&](const std::string& reason) {
    refuse("launch.min_ranks", str("is ", least, ", but ", reason, "; leave it out, or set launch.max_restarts"));
  };
  const StrategyEntry& strategy = strategy_of(config);
  if (!strategy.state_of_lost_rank)
    refuse_here(str("strategy ", config.strategy.name, " cannot continue without one of its ranks"));
  if (run.as.launcher != Launcher::none)
    refuse_here(str(name_of(run.as.launcher), " started the ranks and may end all of them when one dies"));
  if (run.arguments.nodes.any())
    refuse_here("the convoy of each node (--nodes) ends when a peer is lost; type --hosts on one of them instead");
  if (job.backend == "local" && job.ranks.size() > 1)
    refuse_here("with backend local all ranks are threads of one process; set backend: gloo");
  if (job.backend == "mpi") refuse_here("MPI ends all ranks when one dies; set backend: gloo");
  if (job.backend == "nccl")
    refuse_here("with backend nccl a GPU may have used part of a sum of gradients before the loss is known");
  if (config.launch.port > 0)
    refuse("launch.port", str("is ", config.launch.port,
                              ", but with launch.min_ranks the control channel takes another "
                              "port each time that a rank is lost; leave it out"));
  if (config.train.batch.per_rank)
    refuse("train.batch",
           "depends on the number of ranks (per_rank), but with launch.min_ranks a step is repeated with "
           "fewer ranks and the same rows; set train.batch.global");
  const std::string lost = strategy.state_of_lost_rank(job);
  if (!lost.empty() && config.train.checkpoint_every.unit == Interval::Unit::never)
    refuse("train.checkpoint_every",
           str("is never, but with launch.min_ranks the ranks return to the newest checkpoint "
               "when one is lost, because ",
               lost, "; set an interval"));
  if (least > static_cast<int64_t>(job.ranks.size()))
    refuse("launch.min_ranks", str("is ", least, ", but the job has ", job.ranks.size(),
                                   job.ranks.size() == 1 ? " rank" : " ranks", "; set at most that number"));
}

}  // namespace convoy
