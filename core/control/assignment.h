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
  Json snapshots;                        // null, or the snapshots for `convoy verify` (launch/rank/snapshots.cpp)
  std::vector<std::string> faults = {};  // --inject, as typed
  Json bench = {};                       // null, or the measurement for `convoy bench` (launch/rank/measure/bench.h)
  Json use = {};                         // null, or the command that uses a trained run (launch/rank/use/use.h)
  int membership = 0;                    // counts the changes of the job's ranks in this attempt
  // For a membership after a lost rank. true: the other ranks have the whole state; false: all ranks read a checkpoint.
  bool in_memory = true;
  Json data = {};  // protocol::checked_data, for processes that join later
};
// The value of protocol::job. It is compressed: each of N ranks receives a description of N ranks.
std::string to_bytes(const RankAssignment& assignment);
RankAssignment rank_assignment_from_bytes(const std::string& bytes);  // Error(internal) for other bytes

// For the standard input of a process that joins a running job.
Json to_json(const RankAssignment& assignment);
RankAssignment rank_assignment_from_json(const Json& json);

// True if the job continues without ranks that die (launch.min_ranks). Other commands than `convoy run` ignore the key.
bool continues_without_lost_ranks(const RankAssignment& assignment);

// The rank assignment of one rank process.
struct ProcessAssignment : RankAssignment {
  int process = 0;  // index into job.processes
  // Address for data sockets, from data_address (core/control/addresses.h). "": the backend chooses and may select an
  // external interface.
  std::string data_address;
};
// Reads the assignment of `process` from the control channel (protocol::job). `host`: address of the channel.
ProcessAssignment read_assignment(Channel& channel, int process, const std::string& host, Timeout timeout);

// Keys and topics of jobs that continue without lost ranks, in addition to core/control/channel.h.
namespace protocol {

// Key: JSON {channel: to_string(ChannelAddress), ranks: [rank in the next membership, or -1, by rank]}
inline constexpr char next_membership[] = "membership/next";
// Key: set once, by compare_set: `complete` by a rank when all have trained to the end, or `changes` by the supervisor.
inline constexpr char membership_end[] = "membership/end";
inline constexpr char complete[] = "complete";
inline constexpr char changes[] = "changes";
// Topic: {fingerprint, host, numbers}: the data set of rank 0 (launch/rank/data_check.cpp).
inline constexpr char checked_data[] = "checked data";
// Topic: {step, in_memory}: rank 0, before the first step of a membership.
inline constexpr char continued[] = "continued";
// Key + rank: set when the program of this rank has entered Run::each_batch.
inline constexpr char in_loop[] = "loop/";

}  // namespace protocol
}  // namespace convoy
