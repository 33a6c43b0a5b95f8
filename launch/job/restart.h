// Restarts: the job of one `convoy run` starts again from the newest complete checkpoint after a failure.
//
// - launch.max_restarts limits the number of restarts. launch.backoff is the first delay; it doubles with every attempt
//   that reached no later step.
// - There is no restart after failures that would repeat (configuration, disagreement, refusals), before the ranks had
//   started, or after a request to stop.
// - Three attempts in a row that reach no later step end the run with exit code 93.
// - `convoy` must start the ranks or their mpirun itself: an outer mpirun or srun ends its job with the first rank.
// Threads: the event loop's. summary.json lists the end of each attempt (`attempts`).
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "launch/job/job_supervisor.h"
#include "launch/prepare/prepare.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/event_loop.h"

namespace convoy {

// --- Rules for another attempt, also for a farm's retries (launch/farm/run/farm.h). Pure functions. ---

inline constexpr double longest_delay = 600;  // seconds

// True if another attempt may succeed after a failure of this kind.
bool is_retryable(Failure kind);

// Seconds before the next attempt: `backoff`, doubled for each failure in a row after the first, at most longest_delay.
double retry_delay(double backoff, int64_t failures);

struct RestartOptions {
  int64_t most = 0;
  double backoff = 1;  // seconds
};
RestartOptions restart_options(const PreparedRun& run);

// Counts restarts and decides on the next one. Pure.
class RestartBudget {
 public:
  static constexpr int no_progress_limit = 3;  // attempts in a row without progress that end the run
  explicit RestartBudget(const RestartOptions& options) : options_(options) {}

  struct Decision {
    std::optional<std::chrono::milliseconds> again;  // delay before the next attempt
    bool no_progress = false;
  };
  // `checkpoint`: step of the newest checkpoint, -1 without any.
  Decision after(const Abort& cause, int64_t checkpoint);
  bool left() const { return used_ < options_.most; }
  // A process that replaces a lost one counts as a restart, unless the supervisor drops it before it takes part.
  void take() { ++used_; }
  void give_back() { --used_; }
  int64_t used() const { return used_; }
  int64_t most() const { return options_.most; }
  int64_t furthest() const { return furthest_; }

 private:
  RestartOptions options_;
  int64_t used_ = 0;
  int64_t furthest_ = -2;  // step
  int without_progress_ = 0;
};

// End of an attempt.
struct AttemptEnd {
  int exit_code = 0;
  std::optional<std::chrono::milliseconds> again;  // delay before the next attempt; none: the last one
  std::string folder = {};                         // run folder, if another attempt follows
};

// Run folder and restart budget of one `convoy run`, over all attempts.
class RestartPolicy {
 public:
  // Takes over past attempts from the folder's summary. RestartOptions{} allows no restart.
  RestartPolicy(RunFolder folder, const RestartOptions& options);

  const RunFolder& folder() const { return folder_; }
  bool first() const { return budget_.used() == 0; }
  bool may_restart() const { return budget_.left(); }
  RestartBudget& budget() { return budget_; }
  int64_t newest_checkpoint() const;  // step of the newest by name, or -1
  // By attempt, oldest first: {attempt, exit_code, failure, checkpoint: step at which the next one continues, or null;
  // paused: true after train.pause_after}.
  const Json& ended() const { return ended_; }

  Json& injected() { return injected_; }             // faults of --inject that happened, in order
  int64_t& failed_saves() { return failed_saves_; }  // total of the run, with earlier attempts and commands
  Json& memberships() { return memberships_; }       // changes of the ranks (launch.min_ranks), in order

  // Records a failed attempt and decides on the next. `started`: its ranks had started. Without progress the outcome
  // gets the cause no_progress and its exit code.
  AttemptEnd failed(JobOutcome& outcome, bool started);
  std::string note(const JobOutcome& outcome, const AttemptEnd& end) const;  // line for the console

 private:
  void add_ended(int attempt, const Json& exit_code, const Json& failure);

  RunFolder folder_;
  RestartBudget budget_;
  Json ended_ = Json::array(), injected_ = Json::array(), memberships_ = Json::array();
  int64_t failed_saves_ = 0;
};

// Makes attempts until the last one; returns its exit code. A request to stop between two attempts returns 143.
int run_attempts(EventLoop& loop, const std::function<AttemptEnd()>& attempt);

}  // namespace convoy
