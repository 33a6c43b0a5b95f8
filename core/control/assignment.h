// Rank assignment: the job, as the supervisor publishes it to ranks and agents.
#pragma once
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "core/control/channel.h"

namespace convoy {

struct RankAssignment {
  JobPlan job;
  std::string folder;  // absolute
  int attempt = 0;
  double started = 0;                    // unix seconds
  bool passive = false;                  // ranks share cores: waiting threads must not spin
  Json snapshots;                        // null, or the snapshots for `convoy verify` (launch/rank/snapshots.h)
  std::vector<std::string> faults = {};  // --inject, as typed
  Json bench = {};                       // null, or the measurement for `convoy bench` (launch/rank/measure/bench.h)
  Json use = {};                         // null, or the command that uses a trained run (launch/rank/use/use.h)
};
Json to_json(const RankAssignment& assignment);
RankAssignment rank_assignment_from_json(const Json& json);

// The rank assignment of one rank process.
struct ProcessAssignment : RankAssignment {
  int process = 0;  // index into job.processes
  // Address for data sockets: launch.address, or the loopback if the control channel uses it. "": the backend chooses
  // and may select an external interface.
  std::string data_address;
};
// Reads it from the control channel (protocol::job). `host`: address of the channel.
ProcessAssignment read_assignment(Channel& channel, int process, const std::string& host, Timeout timeout);

}  // namespace convoy
