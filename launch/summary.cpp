#include "launch/summary.h"

#include <fcntl.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "core/version.h"
#include "launch/exit_codes.h"

namespace convoy {
namespace {

const char* const measured[] = {"parameters",
                                "epochs",
                                "steps",
                                "samples",
                                "tokens",
                                "train_seconds",
                                "samples_per_second",
                                "startup_seconds",
                                "evaluate_seconds",
                                "data_seconds",
                                "data_cpu_seconds",
                                "wait_seconds",
                                "cpu_efficiency",
                                "bytes_sent_per_step",
                                "metrics"};

// The largest over ranks of each number that rank 0's part does not have itself.
void add_largest(const GangOutcome& outcome, Json& summary) {
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

std::string where_(const std::string& path, const char* what) {
  return str(path, ": cannot ", what, ": ", strerror(errno));
}

// The end of a run says more than its beginning: what each rank measured, the failure, a table of where all stood.
constexpr off_t room_beside = 256 << 10;

// Descriptors, by folder: files without a name, which go with this process however it ends.
std::map<std::string, int>& rooms() {
  static std::map<std::string, int> kept;
  return kept;
}

int open_unnamed(const std::string& folder) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  const std::string path = str(folder, "/.room.", random_token());  // a file system that knows only names
  const int named = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (named >= 0) unlink(path.c_str());
  return named;
}

// Takes now what the end will need: the run itself may fill the disk.
void keep_room(const std::string& folder, off_t beginning) {
  if (rooms().count(folder) != 0) return;
  const int fd = open_unnamed(folder);
  errno = fd < 0 ? errno : posix_fallocate(fd, 0, 2 * beginning + room_beside);
  if (errno == 0) {
    rooms()[folder] = fd;
    return;
  }
  const std::string message = where_(folder, "keep room for the end of the run");
  if (fd >= 0) close(fd);
  throw Error(Failure::io, message);
}

bool give_room(const std::string& folder) {
  const auto kept = rooms().find(folder);
  if (kept == rooms().end()) return false;
  close(kept->second);
  rooms().erase(kept);
  return true;
}

}  // namespace

Json starting_summary(const Json& resolved, const Job& job, int attempt, const Json& placement) {
  Json summary = {{"status", "running"},    {"exit_code", nullptr},
                  {"name", job.name},       {"strategy", resolved.at("strategy").at("name")},
                  {"backend", job.backend}, {"world_size", job.ranks.size()},
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

Json finished_summary(Json summary, const GangOutcome& outcome, std::optional<double> startup_seconds) {
  const bool stopped = outcome.cause && outcome.cause->kind == Failure::stopped;
  summary["status"] = outcome.exit_code == exit_code::done ? "done" : stopped ? "stopped" : "failed";
  summary["exit_code"] = outcome.exit_code;
  for (const auto& [key, value] : outcome.result.items()) summary[key] = value;
  add_largest(outcome, summary);
  if (startup_seconds) summary["startup_seconds"] = *startup_seconds;
  summary["ranks"] = Json::array();
  for (const auto& [rank, values] : outcome.ranks) {
    Json entry = {{"rank", rank}};
    entry.update(values);
    summary["ranks"].push_back(entry);
  }
  summary["failure"] = outcome.cause ? failure_json(*outcome.cause) : Json();
  if (outcome.cause && outcome.stall.is_object()) summary["failure"].update(outcome.stall);
  return summary;
}

Json read_summary(const std::string& folder) {
  Json summary = Json::parse(read_file_if_any(folder + "/summary.json"), nullptr, false);
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
