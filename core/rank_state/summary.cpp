#include "core/rank_state/summary.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <map>

#include "core/base/json.h"
#include "core/base/version.h"
#include "core/control/exit_codes.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

const char* const measured[] = {
    // Amount of work
    "parameters", "epochs", "steps", "samples", "tokens",
    // Times
    "train_seconds", "samples_per_second", "startup_seconds", "evaluate_seconds", "data_seconds", "data_cpu_seconds",
    "wait_seconds",
    // Others
    "cpu_efficiency", "bytes_sent_per_step", "metrics"};

// Adds the largest value over ranks of each number that rank 0's result lacks.
void add_largest(const JobOutcome& outcome, Json& summary) {
  Json efficiency = Json::array();
  for (const auto& [rank, values] : outcome.ranks) {
    if (values.contains("cpu_efficiency")) efficiency.push_back(values["cpu_efficiency"]);
    for (const char* key : measured) {
      if (!values.contains(key) || !values[key].is_number() || outcome.result.contains(key)) continue;
      if (!summary[key].is_number() || summary[key].get<double>() < values[key].get<double>())
        summary[key] = values[key];
    }
  }
  if (!efficiency.empty()) summary["cpu_efficiency"] = efficiency;
}

// Additional bytes for the end of a run: measurements of each rank, the failure, the stall report.
constexpr off_t room_for_end = 256 << 10;

// Space in a file without a name, which vanishes with this process, and the descriptors that writing a summary takes.
struct Room {
  Descriptor file, spare;
};
std::map<std::string, Room>& rooms() {
  static std::map<std::string, Room> kept;  // by folder
  return kept;
}

Descriptor open_unnamed(const std::string& folder) {
  Descriptor file(open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  const std::string path = str(folder, "/.room.", random_token());  // for file systems without O_TMPFILE
  Descriptor named(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (named.valid()) unlink(path.c_str());
  return named;
}

// Reserves disk space for the end of the run, because the run itself may fill the disk.
void keep_room(const std::string& folder, off_t beginning) {
  if (rooms().count(folder) != 0) return;
  Descriptor file = open_unnamed(folder);
  if (file.valid()) errno = posix_fallocate(file.get(), 0, 2 * beginning + room_for_end);
  if (errno != 0)
    throw Error(Failure::io, folder, ": cannot reserve disk space for the end of the run: ", error_text(errno),
                errno == EFBIG ? "; raise the limit `ulimit -f`" : "");
  Descriptor spare(fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  rooms()[folder] = {std::move(file), std::move(spare)};
}

bool give_room(const std::string& folder) { return rooms().erase(folder) > 0; }

}  // namespace

Json starting_summary(const Json& resolved, const JobPlan& job, int attempt, const Json& placement) {
  const Json strategy = resolved.value(Json::json_pointer("/strategy/name"), Json("program"));
  Json summary = {{"status", "running"},   {"exit_code", nullptr},   {"name", job.name},
                  {"strategy", strategy},  {"backend", job.backend}, {"world_size", job.ranks.size()},
                  {"ranks", Json::array()}};
  for (const char* key : measured) summary[key] = nullptr;
  summary["metrics"] = Json::object();
  summary["failure"] = nullptr;
  summary["placement"] = placement;
  summary["attempt"] = attempt;
  summary["version"] = version;
  summary["config"] = resolved;
  return summary;
}

Json failure_json(const Abort& cause) {
  const bool known = cause.rank >= 0;
  return {{"rank", known ? Json(cause.rank) : Json()},
          {"step", cause.step >= 0 ? Json(cause.step) : Json()},
          {"signal", cause.signal > 0 ? Json(cause.signal) : Json()},
          {"cause", cause.signal > 0 && cause.kind != Failure::out_of_memory ? "signal" : name_of(cause.kind)},
          {"message", cause.message},
          {"host", cause.host.empty() ? Json() : Json(cause.host)}};
}

Json ranks_json(const std::map<int, Json>& ranks) {
  Json list = Json::array();
  for (const auto& [rank, values] : ranks) {
    Json entry = {{"rank", rank}};
    entry.update(values);
    list.push_back(entry);
  }
  return list;
}

Json finished_summary(Json summary, JobOutcome outcome, std::optional<double> startup_seconds) {
  const bool stopped = outcome.cause && outcome.cause->kind == Failure::stopped;
  summary["status"] = outcome.exit_code == exit_code::done ? "done" : stopped ? "stopped" : "failed";
  summary["exit_code"] = outcome.exit_code;
  for (const auto& [key, value] : outcome.result.items()) summary[key] = value;
  add_largest(outcome, summary);
  if (startup_seconds) summary["startup_seconds"] = *startup_seconds;
  const Json breakdown = take_breakdown(outcome.ranks, outcome.wall_seconds, outcome.after_seconds);
  summary["ranks"] = ranks_json(outcome.ranks);
  summary["failure"] = outcome.cause ? failure_json(*outcome.cause) : Json();
  if (outcome.cause && outcome.stall.is_object()) summary["failure"].update(outcome.stall);
  if (breakdown.is_object()) {
    summary["breakdown"] = breakdown;
    if (const std::string advice = time_advice(summary); !advice.empty()) summary["breakdown"]["advice"] = advice;
  }
  return summary;
}

Json read_summary(const std::string& folder) {
  Json summary = parsed_json(read_file_if_any(folder + "/summary.json"));
  return summary.is_object() && foreign_key(summary).empty() ? summary : Json::object();
}

std::string foreign_key(const Json& summary) {
  const auto is = [&summary](const Json& in, const char* key, auto type, bool or_null) {
    const auto found = in.find(key);
    return found == in.end() || ((*found).*type)() || (or_null && found->is_null());
  };
  for (const char* key : {"status", "name", "strategy", "version"})
    if (!is(summary, key, &Json::is_string, false)) return key;
  for (const char* key : {"config", "metrics", "failure"})
    if (!is(summary, key, &Json::is_object, true)) return key;
  for (const char* key : {"exit_code", "attempt"})
    if (!is(summary, key, &Json::is_number_integer, true)) return key;
  const auto failure = summary.find("failure");
  for (const char* key : {"cause", "message"})
    if (failure != summary.end() && failure->is_object() && !is(*failure, key, &Json::is_string, false))
      return str("failure.", key);
  return "";
}

double number_in(const Json& json, const char* key, double fallback) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_number() ? found->get<double>() : fallback;
}

int64_t whole_in(const Json& json, const char* key, int64_t fallback) {
  const double value = number_in(json, key, static_cast<double>(fallback));
  constexpr double limit = 9007199254740992;  // 2^53
  return std::fabs(value) <= limit ? static_cast<int64_t>(value) : fallback;
}

std::string text_in(const Json& json, const char* key, const std::string& fallback) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_string() ? found->get<std::string>() : fallback;
}

std::string run_status(const std::string& folder, const Json& summary) {
  const std::string status = text_in(summary, "status", "unknown");
  struct stat lock {};
  const bool locked = stat((folder + "/.lock").c_str(), &lock) == 0 && lock_owner_of(lock) > 0;
  return status == "running" && !locked ? "ended" : status;
}

std::string summary_text(const Json& summary) {
  return summary.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_summary(const std::string& folder, const Json& summary) {
  const std::string file = folder + "/summary.json";
  const std::string text = summary_text(summary);
  const bool running = summary.value("status", "") == "running";
  if (running) keep_room(folder, static_cast<off_t>(text.size()));
  try {
    write_whole(file, text, true);
  } catch (const Error&) {
    if (running || !give_room(folder)) throw;
    write_whole(file, text, true);
  }
  if (!running) give_room(folder);
}

}  // namespace convoy
