#include "launch/farm/run/attempt_result.h"

#include <signal.h>

#include "core/base/version.h"
#include "launch/job/restart.h"
#include "launch/process/exit_codes.h"

namespace convoy {
namespace {

AttemptResult failed(int exit_code, const std::string& cause, const std::string& message, bool retryable) {
  return {AttemptResult::Outcome::failed, retryable, exit_code, cause, message};
}

// Also true if another process stopped or killed parts of the pipeline.
bool may_succeed_later(Failure kind) {
  return is_retryable(kind) || kind == Failure::peer_lost || kind == Failure::stopped;
}

AttemptResult result_of_convoy(const ProcessEnd& end, const Json& summary, const std::string& last_message) {
  if (end.signal > 0) return failed(end.exit_code(), "signal", str("its convoy ", end_text(end)), true);
  const Json failure = summary.value("failure", Json());
  std::string cause = name_of(failure_of_exit(end.code)), message = str("its convoy ", end_text(end));
  bool retryable = may_succeed_later(failure_of_exit(end.code));
  const std::string status = summary.value("status", "");
  if (failure.is_object() && (status == "failed" || status == "stopped")) {
    cause = failure.value("cause", cause);
    message = failure.value("message", message);
    if (cause == "signal") retryable = true;
  } else {
    message = str(last_message, last_message.empty() ? "" : " (", message, "; see logs/convoy.log",
                  last_message.empty() ? "" : ")");
  }
  return failed(end.code, cause, message, retryable);
}

}  // namespace

AttemptResult classify(const ProcessEnd& end, StopReason reason, const std::string& detail, const Json& found,
                       const std::string& limit_key, const std::string& last_message) {
  const Json summary = found.is_object() ? found : Json::object();  // a convoy that ended early wrote none
  if (end.ok()) {
    if (summary.value("status", "") == "done") return {AttemptResult::Outcome::done, false, exit_code::done, "", ""};
    return failed(exit_code::training, name_of(Failure::internal),
                  "its convoy ended with 0, and its summary is not that of a run that is done", true);
  }
  switch (reason) {
    case StopReason::memory:
      return failed(exit_code::out_of_memory, "memory", detail, false);
    case StopReason::timeout:
      return failed(exit_code::hang, "timeout", detail, true);
    case StopReason::preempt:
    case StopReason::stopped:
      // SIGKILL: it did not stop within its grace period. SIGTERM: it had not installed its signal actions yet.
      if (end.code == exit_code::stopped || end.signal == SIGKILL || end.signal == SIGTERM)
        return {reason == StopReason::preempt ? AttemptResult::Outcome::preempted : AttemptResult::Outcome::stopped,
                true, exit_code::stopped, name_of(Failure::stopped), detail};
      break;
    case StopReason::none:
      break;
  }
  AttemptResult result = result_of_convoy(end, summary, last_message);
  if (!limit_key.empty() && result.cause == name_of(Failure::out_of_memory)) {
    result.cause = "memory";
    result.message += str(" (", limit_key, ")");
  }
  return result;
}

Json with_failure(Json summary, const std::string& name, const AttemptResult& result) {
  if (!summary.is_object()) summary = Json::object();
  const std::string status = result.cause == name_of(Failure::stopped) ? "stopped" : "failed";
  const bool complete = summary.value("status", "") == status && summary.value("failure", Json()).is_object() &&
                        summary["failure"].value("cause", "") == result.cause;
  if (complete || result.outcome == AttemptResult::Outcome::done) return summary;
  if (!summary.contains("name")) summary["name"] = name;
  if (!summary.contains("version")) summary["version"] = version;
  const Json before = summary.value("failure", Json());
  const auto previous = [&](const char* key) { return before.is_object() ? before.value(key, Json()) : Json(); };
  summary["status"] = status;
  summary["exit_code"] = result.exit_code;
  summary["failure"] = {{"rank", previous("rank")}, {"step", previous("step")},  {"signal", previous("signal")},
                        {"cause", result.cause},    {"message", result.message}, {"host", previous("host")}};
  return summary;
}

}  // namespace convoy
