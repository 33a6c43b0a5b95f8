// Attempts: the gang of one `convoy run` starts again after a failure, from the newest complete checkpoint.
//
// Rules: launch.max_restarts of them; after launch.backoff, doubled with each attempt that came no further; not after what
// would only happen again (configuration, disagreement, refusals), nor before the ranks had ever started, nor after a request
// to stop. Three attempts in a row that reach no later step than those before end with exit 93. Only where `convoy` starts
// the ranks itself, or the mpirun around them: an outer mpirun or srun ends its job with the first rank.
// Threads: the event loop's. What ended each attempt stays in summary.json (`attempts`).
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "launch/event_loop.h"
#include "launch/gang.h"
#include "launch/prepare.h"
#include "launch/run_folder.h"

namespace convoy {

struct RestartRules {
  int64_t most = 0;
  double backoff = 1;  // seconds
};
RestartRules restart_rules(const PreparedRun& run);

// Whether an attempt, or the next, comes of what ended the last ones. Pure.
class Restarts {
 public:
  static constexpr int fruitless_limit = 3;  // attempts in a row without progress
  explicit Restarts(const RestartRules& rules) : rules_(rules) {}

  struct Decision {
    std::optional<std::chrono::milliseconds> again;  // start again after so long
    bool no_progress = false;
  };
  // `checkpoint`: steps in the newest one, -1 without any.
  Decision after(const Abort& cause, int64_t checkpoint);
  bool left() const { return used_ < rules_.most; }
  int64_t used() const { return used_; }
  int64_t most() const { return rules_.most; }
  int64_t furthest() const { return furthest_; }

 private:
  RestartRules rules_;
  int64_t used_ = 0;
  int64_t furthest_ = -2;  // step
  int fruitless_ = 0;
};

// How an attempt ended, and whether another follows.
struct Ending {
  int exit_code = 0;
  std::optional<std::chrono::milliseconds> again;
  std::string folder = {};  // of the run, where another follows
};

// What outlives the attempts of one `convoy run`.
class Attempts {
 public:
  // The folder's past attempts are taken over from its summary. No rules: never again, whatever happens.
  Attempts(RunFolder folder, const RestartRules& rules);

  const RunFolder& folder() const { return folder_; }
  bool first() const { return restarts_.used() == 0; }
  bool may_restart() const { return restarts_.left(); }
  int64_t newest_checkpoint() const;            // steps, by name; -1
  const Json& ended() const { return ended_; }  // by attempt, oldest first: {attempt, exit_code, failure, checkpoint}

  Json& injected() { return injected_; }  // faults of --inject that happened, in order

  // The attempt failed: notes it and decides. `started`: its ranks had been started. Where attempts make no progress, the
  // outcome's cause and exit code become that.
  Ending failed(GangOutcome& outcome, bool started);
  std::string note(const GangOutcome& outcome, const Ending& ending) const;  // of the restart, for the console

 private:
  RunFolder folder_;
  Restarts restarts_;
  Json ended_ = Json::array(), injected_ = Json::array();
};

// Makes attempts until one is the last; its exit code. A request to stop between two ends it with 143.
int make_attempts(EventLoop& loop, const std::function<Ending()>& attempt);

}  // namespace convoy
