#include "launch/job/membership.h"

#include <algorithm>

#include "core/base/text.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

NextMembership without_process(const PreparedRun& run, const Topology& topology, const JobPlan& job, int process) {
  const std::vector<int>& gone = job.processes.at(static_cast<size_t>(process)).ranks;
  const bool has_data_axis = job.mesh.degree("data") > 1;
  const auto leaves = [&](int rank) {
    return std::any_of(gone.begin(), gone.end(), [&](int lost) {
      return lost == rank || (has_data_axis && job.mesh.coordinate(lost, "data") == job.mesh.coordinate(rank, "data"));
    });
  };
  NextMembership next;
  next.lost = strategy_of(run.config).state_of_lost_rank(job);
  next.job = job;
  next.job.ranks.clear();
  next.job.processes.clear();
  for (const RankPlan& before : job.ranks) {
    next.ranks.push_back(leaves(before.rank) ? -1 : static_cast<int>(next.job.ranks.size()));
    if (next.ranks.back() < 0) continue;
    RankPlan rank = before;
    rank.rank = rank.process = next.ranks.back();
    next.job.processes.push_back({rank.host, {rank.rank}});
    next.job.ranks.push_back(std::move(rank));
  }
  if (has_data_axis) {
    std::vector<Axis> axes = job.mesh.axes();
    for (Axis& axis : axes)
      if (axis.name == "data") --axis.degree;
    next.job.mesh = Mesh(axes);
  } else if (!next.job.ranks.empty()) {
    PreparedRun fewer = run;
    fewer.arguments.faults.clear();  // they were checked, and may name a rank that is gone
    fewer.config = run.config.changed({{"launch", {{"ranks", next.job.ranks.size()}, {"min_ranks", 0}}}});
    next.job.mesh = plan_and_place(fewer, topology).job.mesh;
  }
  return next;
}

JobPlan with_replica(const JobPlan& job, const std::vector<RankPlan>& added) {
  const auto refuse = [&](const std::string& reason) {
    throw ConfigError(location_of(job.config.resolved, "strategy"), "strategy", reason);
  };
  JobPlan next = job;
  std::vector<Axis> axes = job.mesh.axes();
  if (axes.empty() || axes.front().name != "data")
    refuse("has no outermost axis `data`, along which a rank could join");
  ++axes.front().degree;
  next.mesh = Mesh(axes);
  if (next.mesh.size() != static_cast<int>(job.ranks.size() + added.size()))
    refuse(str("needs ", counted(next.mesh.size() - static_cast<int>(job.ranks.size()), "rank"),
               " for one more replica, but ", added.size(), " would join"));
  for (RankPlan rank : added) {
    rank.rank = static_cast<int>(next.ranks.size());
    rank.process = static_cast<int>(next.processes.size());
    next.processes.push_back({rank.host, {rank.rank}});
    next.ranks.push_back(std::move(rank));
  }
  return next;
}

RankPlan placement_of_next_rank(const PreparedRun& run, const Topology& topology, const JobPlan& job) {
  PreparedRun more = run;
  more.arguments.faults.clear();
  more.config = run.config.changed({{"launch", {{"ranks", job.ranks.size() + 1}, {"min_ranks", 0}}}});
  return plan_and_place(more, topology).job.ranks.back();
}

}  // namespace convoy
