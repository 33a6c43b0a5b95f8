#include "launch/job/restart.h"

#include <string.h>
#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"

namespace convoy {
namespace {

constexpr size_t most_kept = 100;  // attempts in a summary

std::string attempt_text(const Abort& cause) {
  return cause.message.empty() ? str("a failure (", name_of(cause.kind), ")") : cause.message;
}

// Writes a stop between two attempts into the summary: no process runs that could do so.
int stopped_between(const std::string& folder, int signal) {
  Json summary = read_summary(folder);
  Abort cause;
  cause.kind = Failure::stopped;
  cause.message = str("stopped by SIG", sigabbrev_np(signal),
                      " between two attempts; the same command resumes from the newest checkpoint");
  summary["status"] = "stopped";
  summary["exit_code"] = exit_code_of(cause);
  summary["failure"] = failure_json(cause);
  write_summary(folder, summary);
  std::cerr << "convoy: " << cause.message << "; " << folder << "/summary.json\n";
  return exit_code_of(cause);
}

}  // namespace

bool is_retryable(Failure kind) {
  for (const Failure retryable :
       {Failure::training, Failure::out_of_memory, Failure::io, Failure::rendezvous, Failure::hang, Failure::internal})
    if (kind == retryable) return true;
  return false;
}

double retry_delay(double backoff, int64_t failures) {
  return std::min(backoff * std::pow(2.0, static_cast<double>(std::max<int64_t>(failures, 1) - 1)), longest_delay);
}

RestartOptions restart_options(const PreparedRun& run) {
  if (!run.snapshots.is_null()) return {};  // `convoy verify` compares undisturbed runs
  return {run.config.launch.max_restarts, run.config.launch.backoff};
}

RestartBudget::Decision RestartBudget::after(const Abort& cause, int64_t checkpoint) {
  const int64_t reached = std::max(cause.step, checkpoint);
  without_progress_ = reached > furthest_ ? 1 : without_progress_ + 1;
  furthest_ = std::max(furthest_, reached);
  Decision decision;
  if (!(cause.signal > 0 || is_retryable(cause.kind)) || options_.most == 0) return decision;
  if (without_progress_ >= no_progress_limit) {
    decision.no_progress = true;
    return decision;
  }
  if (!left()) return decision;
  ++used_;
  const double seconds = retry_delay(options_.backoff, without_progress_);
  decision.again = to_milliseconds(seconds);
  return decision;
}

RestartPolicy::RestartPolicy(RunFolder folder, const RestartOptions& options)
    : folder_(std::move(folder)), budget_(options) {
  if (folder_.attempt == 0) return;
  const Json before = read_summary(folder_.path);
  if (before.contains("attempts") && before["attempts"].is_array()) ended_ = before["attempts"];
  if (before.contains("membership") && before["membership"].is_array()) memberships_ = before["membership"];
  failed_saves_ = before.value("failed_saves", int64_t(0));
  // If a supervisor was killed, its attempt has not recorded its end.
  const int last = before.value("attempt", 0);
  const bool noted = !ended_.empty() && ended_.back().value("attempt", -1) == last;
  if (noted || !before.contains("failure") || !before["failure"].is_object()) return;
  add_ended(last, before.value("exit_code", Json()), before["failure"]);
  if (before.value("paused", false)) ended_.back()["paused"] = true;
}

void RestartPolicy::add_ended(int attempt, const Json& exit_code, const Json& failure) {
  const int64_t checkpoint = newest_checkpoint();
  ended_.push_back({{"attempt", attempt},
                    {"exit_code", exit_code},
                    {"failure", failure},
                    {"checkpoint", checkpoint >= 0 ? Json(checkpoint) : Json()}});
  while (ended_.size() > most_kept) ended_.erase(ended_.begin());
}

int64_t RestartPolicy::newest_checkpoint() const {
  const std::string prefix = "step-";
  int64_t newest = -1;
  for (const std::string& name : names_in(folder_.path + "/checkpoints"))
    if (name.rfind(prefix, 0) == 0)
      newest = std::max(newest, static_cast<int64_t>(std::atoll(name.c_str() + prefix.size())));
  return newest;
}

AttemptEnd RestartPolicy::failed(JobOutcome& outcome, bool started) {
  const Abort cause = outcome.cause.value_or(Abort{});
  const int64_t checkpoint = newest_checkpoint();
  add_ended(folder_.attempt, outcome.exit_code, failure_json(cause));
  // There is no restart if ranks have never started. After a first start, a missing host is a reason to wait.
  if (!started && budget_.used() == 0) return {outcome.exit_code, std::nullopt};
  const RestartBudget::Decision decision = budget_.after(cause, checkpoint);
  if (decision.again) ++folder_.attempt;
  if (decision.no_progress) {
    Abort stuck = cause;
    stuck.kind = Failure::no_progress;
    stuck.signal = 0;
    const int64_t furthest = budget_.furthest();
    stuck.message =
        str(RestartBudget::no_progress_limit, " attempts in a row ",
            furthest >= 0 ? str("reached no step after ", furthest) : std::string("ended before a step was done"),
            ", the last with: ", attempt_text(cause), ". Another would end there too: see `attempts` in summary.json",
            cause.rank >= 0 ? str(" and logs/rank", cause.rank, ".log") : std::string());
    outcome.cause = stuck;
    outcome.exit_code = exit_code_of(stuck);
  }
  return {outcome.exit_code, decision.again, folder_.path};
}

std::string RestartPolicy::note(const JobOutcome& outcome, const AttemptEnd& end) const {
  const int64_t checkpoint = newest_checkpoint();
  const Abort cause = outcome.cause.value_or(Abort{});
  return str("attempt ", folder_.attempt - 1, " failed (exit ", outcome.exit_code, "): ", attempt_text(cause),
             "; all ranks start again in ", human_seconds(*end.again),
             checkpoint >= 0 ? str(" from the checkpoint after step ", checkpoint) : std::string(" from the beginning"),
             ", restart ", budget_.used(), " of ", budget_.most(), " (launch.max_restarts)");
}

int run_attempts(EventLoop& loop, const std::function<AttemptEnd()>& attempt) {
  while (true) {
    const AttemptEnd end = attempt();
    if (!end.again) return end.exit_code;
    int signal = 0;
    loop.on_signal([&](int received) { signal = received; });
    loop.run_until([&] { return signal != 0; }, *end.again);
    loop.on_signal(nullptr);
    if (signal != 0) return stopped_between(end.folder, signal);
  }
}

}  // namespace convoy
