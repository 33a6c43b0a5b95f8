#include "launch/restart.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <iostream>

#include "core/files.h"
#include "launch/exit_codes.h"
#include "launch/retry.h"
#include "launch/summary.h"

namespace convoy {
namespace {

constexpr size_t most_kept = 100;  // attempts in a summary

std::string attempt_text(const Abort& cause) {
  return cause.message.empty() ? str("a failure (", name_of(cause.kind), ")") : cause.message;
}

}  // namespace

RestartRules restart_rules(const PreparedRun& run) {
  if (!run.snapshots.is_null()) return {};  // `convoy verify` compares runs that nothing has disturbed
  const Json& launch = run.config.resolved.at("launch");
  return {launch.at("max_restarts").get<int64_t>(), launch.at("backoff").get<double>()};
}

Restarts::Decision Restarts::after(const Abort& cause, int64_t checkpoint) {
  const int64_t reached = std::max(cause.step, checkpoint);
  fruitless_ = reached > furthest_ ? 1 : fruitless_ + 1;
  furthest_ = std::max(furthest_, reached);
  Decision decision;
  if (!(cause.signal > 0 || worth_another(cause.kind)) || rules_.most == 0) return decision;
  if (fruitless_ >= fruitless_limit) {
    decision.no_progress = true;
    return decision;
  }
  if (!left()) return decision;
  ++used_;
  const double seconds = retry_delay(rules_.backoff, fruitless_);
  decision.again = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  return decision;
}

Attempts::Attempts(RunFolder folder, const RestartRules& rules) : folder_(std::move(folder)), restarts_(rules) {
  if (folder_.attempt == 0) return;
  const Json before = read_summary(folder_.path);
  if (before.contains("attempts") && before["attempts"].is_array()) ended_ = before["attempts"];
  // One that was killed had no time to note its own end.
  const int last = before.value("attempt", 0);
  const bool noted = !ended_.empty() && ended_.back().value("attempt", -1) == last;
  if (!noted && before.contains("failure") && before["failure"].is_object())
    ended_.push_back({{"attempt", last},
                      {"exit_code", before.value("exit_code", Json())},
                      {"failure", before["failure"]},
                      {"checkpoint", nullptr}});
}

int64_t Attempts::newest_checkpoint() const {
  const std::string prefix = "step-";
  int64_t newest = -1;
  for (const std::string& name : names_in(folder_.path + "/checkpoints"))
    if (name.rfind(prefix, 0) == 0)
      newest = std::max(newest, static_cast<int64_t>(std::atoll(name.c_str() + prefix.size())));
  return newest;
}

Ending Attempts::failed(GangOutcome& outcome, bool started) {
  const Abort cause = outcome.cause.value_or(Abort{});
  const int64_t checkpoint = newest_checkpoint();
  ended_.push_back({{"attempt", folder_.attempt},
                    {"exit_code", outcome.exit_code},
                    {"failure", failure_json(cause)},
                    {"checkpoint", checkpoint >= 0 ? Json(checkpoint) : Json()}});
  while (ended_.size() > most_kept) ended_.erase(ended_.begin());
  // Once they had started, a host that is not back yet is one more reason to wait.
  if (!started && restarts_.used() == 0) return {outcome.exit_code, std::nullopt};
  const Restarts::Decision decision = restarts_.after(cause, checkpoint);
  if (decision.again) ++folder_.attempt;
  if (decision.no_progress) {
    Abort stuck = cause;
    stuck.kind = Failure::no_progress;
    stuck.signal = 0;
    const int64_t furthest = restarts_.furthest();
    stuck.message =
        str(Restarts::fruitless_limit, " attempts in a row ",
            furthest >= 0 ? str("came no further than step ", furthest) : std::string("ended before a step was done"),
            ", the last with: ", attempt_text(cause), ". Another would end there too: see `attempts` in summary.json",
            cause.rank >= 0 ? str(" and logs/rank", cause.rank, ".log") : std::string());
    outcome.cause = stuck;
    outcome.exit_code = exit_code_of(stuck);
  }
  return {outcome.exit_code, decision.again, folder_.path};
}

std::string Attempts::note(const GangOutcome& outcome, const Ending& ending) const {
  const int64_t checkpoint = newest_checkpoint();
  const Abort cause = outcome.cause.value_or(Abort{});
  return str("attempt ", folder_.attempt - 1, " failed (exit ", outcome.exit_code, "): ", attempt_text(cause),
             "; all ranks start again in ", human_seconds(static_cast<double>(ending.again->count()) / 1000),
             checkpoint >= 0 ? str(" from the checkpoint after step ", checkpoint) : std::string(" from the beginning"),
             ", restart ", restarts_.used(), " of ", restarts_.most(), " (launch.max_restarts)");
}

namespace {

// Between two attempts nothing runs that could stop: the folder is all there is to tell.
int stopped_between(const std::string& folder, int signal) {
  Json summary = read_summary(folder);
  const Abort cause{Failure::stopped,
                    -1,
                    -1,
                    0,
                    "",
                    str("stopped by SIG", sigabbrev_np(signal),
                        " between two attempts; the same command goes on from the newest checkpoint")};
  summary["status"] = "stopped";
  summary["exit_code"] = exit_code_of(cause);
  summary["failure"] = failure_json(cause);
  write_summary(folder, summary);
  std::cerr << "convoy: " << cause.message << "; " << folder << "/summary.json\n";
  return exit_code_of(cause);
}

}  // namespace

int make_attempts(EventLoop& loop, const std::function<Ending()>& attempt) {
  while (true) {
    const Ending ending = attempt();
    if (!ending.again) return ending.exit_code;
    int signal = 0;
    bool over = false;
    loop.on_signal([&](int received) { signal = received; });
    const EventLoop::TimerId timer = loop.after(*ending.again, [&over] { over = true; });
    loop.run_until([&] { return over || signal != 0; });
    loop.cancel(timer);
    loop.on_signal([](int) {});
    if (signal != 0) return stopped_between(ending.folder, signal);
  }
}

}  // namespace convoy
