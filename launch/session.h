// What the `convoy` that serves does in every mode for one attempt: channel, logs, progress, summary.
//
// Call order: construct (serves the channel), begin (the job is known and published), finish. The caller starts and ends
// processes. Threads: the event loop's.
#pragma once
#include <memory>
#include <optional>

#include "launch/console.h"
#include "launch/gang.h"
#include "launch/prepare.h"
#include "launch/restart.h"
#include "launch/run_folder.h"

namespace convoy {

class Session {
 public:
  struct Actions {
    std::function<void(const std::vector<Join>&)> on_joined;
    std::function<void(const Abort&)> on_failure;  // end your processes
  };
  // `attempts` outlives it.
  Session(EventLoop& loop, const PreparedRun& run, Attempts& attempts, GangRequest request, Actions actions);

  Gang& gang() { return *gang_; }
  Console& console() { return console_; }
  RankLogs& logs() { return logs_; }
  const Assigned& assigned() const { return *assigned_; }

  void begin(const Placed& placed);
  void not_begun(const Error& error);  // the summary tells; the caller ends
  void stop(int signal);               // asked to: the first time in order, the second time at once
  // Writes and tells the end of this attempt: the exit code of `convoy run`, or that another is to follow.
  Ending finish();

 private:
  void write_ending(const GangOutcome& outcome);
  void note_stop(int signal);
  void write_stopped(const GangOutcome& outcome);
  void injected(const Json& body);
  void tell_progress(const Json& body);
  Json configuration() const;
  void start_summary(const Job& job, const std::vector<PlacedRank>& table = {});

  EventLoop& loop_;
  const PreparedRun& run_;
  Attempts& attempts_;
  const RunFolder& folder_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  Console console_;
  RankLogs logs_;
  std::optional<Assigned> assigned_;
  std::optional<double> startup_seconds_;
  std::chrono::steady_clock::time_point told_;  // when progress.json was written last
  Json summary_;
  std::unique_ptr<Gang> gang_;  // last: its callbacks use the others
};

double unix_seconds();
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace convoy
