// Failures of a rank process: translation of exceptions, crash reports, and stop signals. A crash report is a backtrace
// on stderr (in logs/rankN.log), or the reason if the system refuses a resource.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/control/channel.h"
#include "core/rank_state/state_file.h"

namespace convoy {

// --- Translation of exceptions, used by every end of a rank process ---

struct TranslatedException {
  Failure kind = Failure::internal;
  std::string message;  // without a backtrace; with a remedy if one is known
  // Rank that causes a stall or mismatch; rarely the rank that detected it. -1: no single rank.
  std::optional<int> rank = std::nullopt;
};
// Translates the current exception; call it inside a catch block. `unknown`: the kind for exceptions without one.
TranslatedException translate_exception(Failure unknown);

// Attributes later crashes of this thread to `rank` of this process: a crash sets the phase in its state file to
// `crashed_phase` (core/rank_state/position.h). Null: to no rank.
void set_crash_rank(StateFile* file, int rank = -1);

// Installs handlers. SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT print a backtrace, and the same signal ends the
// process. SIGBUS in a mapped file ends the process with 74 and the file's name. std::terminate for lack of threads or
// memory ends it with 71 and the limit. The signal handlers are async-signal-safe.
void install_crash_handlers();
// Installs only the handler of std::terminate.
void install_terminate_handler();

// From now on, an uncaught exception, and exit(), end the process with the code that `report` returns. `report` reports
// the current exception, or `reason` if that is not null. A null `report` disables this.
void on_early_end(std::function<int(const char* reason)> report);
// From now on, `report` is called for an exception that nothing on this thread catches. Then the exception ends the
// process as usual. Null disables this.
void on_uncaught(std::function<void()> report);

// --- Stop signals that reach a rank process ---
//
// Slurm signals every process of a job step. A terminal signals its process group. A user may signal a rank. The rank
// reports the signal to the supervisor, which acts as if its `convoy` had received it.

// Catches stop_signals() except SIGQUIT; they no longer end this process. Call it before other threads start.
void catch_stop_signals();
// Reports past and future stop signals from a separate thread, during the lifetime of the channel. A later call reports
// to another channel.
void report_stop_signals(const std::shared_ptr<Channel>& channel);

}  // namespace convoy
