// Membership: the ranks of a job between two changes (launch.min_ranks).
//
// The supervisor decides which ranks a membership has. When a rank process is killed, the supervisor serves a new
// control channel for the remaining ranks and publishes their job there. It names the new channel on the channel of the
// membership before. Ranks that find a peer lost join the new channel in the same process. So each membership has
// a separate channel, separate groups, and separate votes in the control store.
#pragma once
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "launch/prepare/prepare.h"

namespace convoy {

struct NextMembership {
  JobPlan job;
  std::vector<int> ranks;  // by rank of the membership before: the rank in this one; -1: it has left
  std::string lost;        // "": the ranks that are left have all state; else why not
};

// The job without a process. An axis `data` becomes shorter by one: with other axes, the whole replica of a lost rank
// leaves. Without that axis the strategy plans for the number of ranks that are left, which throws ConfigError if there
// is no such layout.
NextMembership without_process(const PreparedRun& run, const Topology& topology, const JobPlan& job, int process);

// The job with one more replica on these ranks: its axis `data` becomes longer by one. Throws ConfigError if the ranks
// before would get other numbers.
JobPlan with_replica(const JobPlan& job, const std::vector<RankPlan>& added);

// Plans the job with one more rank and returns the placement of its last rank. Throws ConfigError if the strategy or
// the hosts cannot have that number of ranks.
RankPlan placement_of_next_rank(const PreparedRun& run, const Topology& topology, const JobPlan& job);

}  // namespace convoy
