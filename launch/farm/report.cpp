#include "launch/farm/report.h"

#include <string.h>

#include <algorithm>
#include <filesystem>

#include "core/version.h"
#include "launch/exit_codes.h"
#include "launch/farm/leaderboard.h"
#include "launch/summary.h"

namespace convoy {
namespace {

constexpr size_t most_named = 8;  // pipelines in a message; the summary has all

std::string folder_within(const Member& member) { return "pipelines/" + member.pipeline.name; }

std::vector<const Member*> in_state(const std::vector<Member>& members, Member::State state) {
  std::vector<const Member*> found;
  for (const Member& member : members)
    if (member.state == state) found.push_back(&member);
  return found;
}

std::string named(const std::vector<const Member*>& members, bool causes) {
  std::vector<std::string> names;
  for (size_t i = 0; i < members.size() && i < most_named; ++i)
    names.push_back(members[i]->pipeline.name + (causes ? " (" + members[i]->verdict.cause + ")" : ""));
  if (members.size() > most_named) names.push_back(str(members.size() - most_named, " more"));
  return join(names, ", ");
}

double number(const Json& summary, const char* key) {
  const auto found = summary.find(key);
  return found != summary.end() && found->is_number() ? found->get<double>() : 0;
}

}  // namespace

const char* name_of(Member::State state) {
  switch (state) {
    case Member::State::waiting:
      return "waiting";
    case Member::State::running:
      return "running";
    case Member::State::done:
      return "done";
    case Member::State::failed:
      return "failed";
    case Member::State::stopped:
      return "stopped";
  }
  return "?";
}

Json to_json(const Member& member, const Json& summary) {
  const bool ended = member.state != Member::State::waiting && member.state != Member::State::running;
  const bool failed = ended && member.state != Member::State::done;
  return {{"name", member.pipeline.name},
          {"status", name_of(member.state)},
          {"exit_code", ended ? Json(member.verdict.exit_code) : Json()},
          {"attempts", member.starts},
          {"cause", failed ? Json(member.verdict.cause) : Json()},
          {"message", failed ? Json(member.verdict.message) : Json()},
          {"folder", folder_within(member)},
          {"metrics", summary.value("metrics", Json::object())}};
}

FarmEnd farm_end(const std::vector<Member>& members, int stop_signal) {
  const auto failed = in_state(members, Member::State::failed);
  const auto done = in_state(members, Member::State::done);
  if (stop_signal != 0 && done.size() + failed.size() < members.size())
    return {exit_code::stopped, name_of(Failure::stopped),
            str("stopped by SIG", sigabbrev_np(stop_signal), " with ", done.size(), " of ", members.size(),
                " pipelines done; the same command goes on with the rest")};
  if (failed.empty()) return {};
  return {exit_code::pipelines_failed, "pipelines",
          str(failed.size(), " of ", members.size(), " pipelines failed: ", named(failed, true))};
}

Json farm_summary(const FarmRun& run, const std::vector<Member>& members, int attempt, int slots, double seconds,
                  const FarmEnd* end) {
  Json summary = {{"status", end == nullptr                            ? "running"
                             : end->exit_code == 0                     ? "done"
                             : end->cause == name_of(Failure::stopped) ? "stopped"
                                                                       : "failed"},
                  {"exit_code", end == nullptr ? Json() : Json(end->exit_code)},
                  {"name", run.name},
                  {"strategy", run.strategy},
                  {"backend", nullptr},
                  {"world_size", slots},
                  {"ranks", Json::array()}};
  Json pipelines = Json::array();
  std::vector<PipelineResult> results;
  double samples = 0, parameters = 0, steps = 0;
  for (const Member& member : members) {
    const Json own = end != nullptr ? read_summary(member.folder) : Json::object();
    pipelines.push_back(to_json(member, own));
    samples += number(own, "samples");
    parameters += number(own, "parameters");
    steps += number(own, "steps");
    results.push_back({member.pipeline.name, name_of(member.state), member.starts, member.verdict.cause,
                       folder_within(member), own, member.pipeline.grid});
  }
  summary["parameters"] = static_cast<int64_t>(parameters);
  summary["steps"] = static_cast<int64_t>(steps);
  summary["samples"] = static_cast<int64_t>(samples);
  summary["train_seconds"] = seconds;
  summary["samples_per_second"] = seconds > 0 ? samples / seconds : 0;
  summary["metrics"] = Json::object();
  const bool failed = end != nullptr && !end->cause.empty();
  summary["failure"] =
      !failed ? Json() : Json{{"rank", nullptr},         {"step", nullptr},
                              {"signal", nullptr},       {"cause", end->cause},
                              {"message", end->message}, {"host", end->host.empty() ? Json() : Json(end->host)}};
  summary["pipelines"] = pipelines;
  summary["leaderboard"] = end == nullptr ? Json() : leaderboard(results, {run.farm.metric, run.farm.direction});
  summary["inject"] = run.arguments.faults;
  std::error_code none;
  summary["directory"] = std::filesystem::current_path(none).string();  // that relative paths of data count from
  summary["attempt"] = attempt;
  summary["version"] = version;
  summary["config"] = run.resolved;
  return summary;
}

std::string farm_progress(const std::vector<Member>& members) {
  std::vector<std::string> parts;
  const auto running = in_state(members, Member::State::running);
  const auto add = [&](size_t count, const char* one, const char* several, const std::string& more = "") {
    if (count > 0) parts.push_back(str(count, count == 1 ? one : several, more));
  };
  add(running.size(), " runs", " run", running.empty() ? "" : " (" + named(running, false) + ")");
  add(in_state(members, Member::State::waiting).size(), " waits", " wait");
  add(in_state(members, Member::State::done).size(), " is done", " are done");
  add(in_state(members, Member::State::failed).size(), " failed", " failed");
  return join(parts, ", ");
}

}  // namespace convoy
