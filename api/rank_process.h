// Rank process: a child of `convoy` with one rank, or several as threads. It receives its work over the control
// channel. convoy-rank and Job use it.
//
//   prepare_process();       first in main()
//   RankProcess process;     connects
//   try {
//     process.open(phase);   receives the rank assignment
//     … process.ranks() …
//   } catch (...) {
//     code = process.fail();
//   }
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/rank.h"
#include "api/stall_reporter.h"
#include "core/control/assignment.h"
#include "core/control/channel.h"

namespace convoy {

// Variables that `convoy` sets for its rank processes.
struct RankVariables {
  ChannelAddress channel;
  int process = 0;
  int rank = 0;  // first rank of the process; equals `process` if CONVOY_RANK is not set, as in a calibration
};
bool started_by_convoy();        // false in a child of a rank that has joined
RankVariables rank_variables();  // throws Error(command_line) if one is missing

// Sets signal actions, crash and stack handlers, and the allocator. Call it before other threads start.
void prepare_process();

// Connects to the supervisor as participant `rank`. This process ends when the supervisor is gone.
std::shared_ptr<Channel> connect_to_supervisor(const ChannelAddress& address, int rank);

class RankProcess {
 public:
  // Connects to the supervisor, and reports stop signals of this process to it.
  RankProcess();

  // Receives the rank assignment, and opens the ranks in this phase: other processes see their positions from now on.
  void assign();
  void open(const char* phase);

  // After a lost peer: waits until the supervisor names the next membership of the job (launch.min_ranks), and joins
  // it, with other ranks and a new channel. Earlier ranks() and their contexts must be destroyed before. Returns false
  // if the job ends.
  bool join_next();

  Channel& channel() { return *channel_; }
  ProcessAssignment& assignment() { return assignment_; }
  std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }
  const std::vector<FileProgress::Rank>& opened() const { return opened_; }

  // Reports the current exception as a failure of the process, not of one rank. Returns its exit code.
  int fail() const;

 private:
  class NextMembership;  // the next membership, in the supervisor's message

  RankVariables variables_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<NextMembership> next_;
  ProcessAssignment assignment_;
  std::shared_ptr<StallReporter> stall_reporter_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<FileProgress::Rank> opened_;
};

}  // namespace convoy
