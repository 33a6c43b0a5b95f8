#include "launch/farm/outcome.h"

#include <signal.h>

#include "core/version.h"
#include "launch/exit_codes.h"
#include "launch/retry.h"

namespace convoy {
namespace {

Verdict failed(int exit_code, const std::string& cause, const std::string& message, bool again_helps) {
  return {Verdict::What::failed, again_helps, exit_code, cause, message};
}

// A pipeline's own `convoy` may also end because it was stopped or lost by somebody else than this farm.
bool again_may_help(Failure kind) {
  return worth_another(kind) || kind == Failure::peer_lost || kind == Failure::stopped;
}

Verdict by_itself(const ProcessEnd& end, const Json& summary, const std::string& told) {
  if (end.signal > 0) return failed(end.exit_code(), "signal", str("its convoy ", describe(end)), true);
  const Json failure = summary.value("failure", Json());
  std::string cause = name_of(failure_of_exit(end.code)), message = str("its convoy ", describe(end));
  bool again = again_may_help(failure_of_exit(end.code));
  const std::string status = summary.value("status", "");
  if (failure.is_object() && (status == "failed" || status == "stopped")) {
    cause = failure.value("cause", cause);
    message = failure.value("message", message);
    if (cause == "signal") again = true;
  } else {
    message = str(told, told.empty() ? "" : " (", message, "; see logs/convoy.log", told.empty() ? "" : ")");
  }
  return failed(end.code, cause, message, again);
}

}  // namespace

Verdict judge(const ProcessEnd& end, StopReason asked, const std::string& detail, const Json& found,
              const std::string& held_to, const std::string& told) {
  const Json summary = found.is_object() ? found : Json::object();  // it may have ended before it wrote any
  if (end.ok()) {
    if (summary.value("status", "") == "done") return {Verdict::What::done, false, exit_code::done, "", ""};
    return failed(exit_code::training, name_of(Failure::internal),
                  "its convoy ended with 0, and its summary is not that of a run that is done", true);
  }
  switch (asked) {
    case StopReason::memory:
      return failed(exit_code::out_of_memory, "memory", detail, false);
    case StopReason::timeout:
      return failed(exit_code::hang, "timeout", detail, true);
    case StopReason::preempt:
    case StopReason::stopped:
      // SIGKILL: it did not stop within its grace; it goes on from the checkpoint before. SIGTERM: it had not come so far as
      // to listen.
      if (end.code == exit_code::stopped || end.signal == SIGKILL || end.signal == SIGTERM)
        return {asked == StopReason::preempt ? Verdict::What::preempted : Verdict::What::stopped, true,
                exit_code::stopped, name_of(Failure::stopped), detail};
      break;
    case StopReason::none:
      break;
  }
  Verdict verdict = by_itself(end, summary, told);
  if (!held_to.empty() && verdict.cause == name_of(Failure::out_of_memory)) {
    verdict.cause = "memory";
    verdict.message += str(" (", held_to, ")");
  }
  return verdict;
}

Json with_end(Json summary, const std::string& name, const Verdict& verdict) {
  if (!summary.is_object()) summary = Json::object();
  const std::string status = verdict.cause == name_of(Failure::stopped) ? "stopped" : "failed";
  const bool told = summary.value("status", "") == status && summary.value("failure", Json()).is_object() &&
                    summary["failure"].value("cause", "") == verdict.cause;
  if (told || verdict.what == Verdict::What::done) return summary;
  if (!summary.contains("name")) summary["name"] = name;
  if (!summary.contains("version")) summary["version"] = version;
  const Json before = summary.value("failure", Json());
  const auto kept = [&](const char* key) { return before.is_object() ? before.value(key, Json()) : Json(); };
  summary["status"] = status;
  summary["exit_code"] = verdict.exit_code;
  summary["failure"] = {{"rank", kept("rank")},   {"step", kept("step")},       {"signal", kept("signal")},
                        {"cause", verdict.cause}, {"message", verdict.message}, {"host", kept("host")}};
  return summary;
}

}  // namespace convoy
