#include "launch/farm/run/farm.h"

#include <chrono>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/config/run_config.h"
#include "core/control/exit_codes.h"
#include "core/control/fault.h"
#include "core/files/limits.h"
#include "core/files/run_files.h"
#include "core/rank_state/summary.h"
#include "launch/farm/run/local_launcher.h"
#include "launch/farm/run/supervisor.h"
#include "launch/job/restart.h"
#include "launch/job/run_attempt.h"
#include "launch/machine/gpus.h"
#include "launch/machine/topology.h"

namespace convoy {
namespace {

void refuse_single_run_options(const FarmRun& run) {
  if (!run.arguments.hosts.empty())
    throw Error(
        Failure::command_line,
        "--hosts is for one run; start a farm on several hosts with mpirun or srun, and each of their ranks is a slot");
  if (run.arguments.ranks > 0)
    throw Error(Failure::command_line,
                "--ranks is for one run; set launch.ranks in the pipelines, or strategy.max_parallel");
  for (const std::string& fault : run.arguments.faults) {
    const size_t slash = fault.find('/');
    std::vector<std::string> names;
    bool known = false;
    for (const Pipeline& pipeline : run.farm.pipelines) {
      names.push_back(pipeline.name);
      known = known || pipeline.name == fault.substr(0, slash);
    }
    if (slash == std::string::npos || !known)
      throw Error(Failure::command_line, "--inject ", fault, ": names no pipeline; write NAME/FAULT, such as ",
                  names.front(), "/kill@step=50");
    faults_from_texts({fault.substr(slash + 1)});
  }
}

// Adds a warning for each GPU that several pipelines share.
void warn_of_shared_gpus(FarmRun& run) {
  std::map<int, std::vector<std::string>> sharers;
  for (const Pipeline& pipeline : run.farm.pipelines)
    for (const int gpu : pipeline.options.gpu_list) sharers[gpu].push_back(pipeline.name);
  for (const auto& [gpu, names] : sharers)
    if (names.size() > 1)
      run.warnings.push_back(
          shared_gpu_note(gpu, host_name(), "pipelines " + join(names, ", "), mps_folder(run.variables)));
}

constexpr size_t most_checked_with_mistakes = 1'000;  // pipelines

int run_alone(FarmRun& run) {
  Cluster cluster = cluster_of(this_host({true, false}));
  std::vector<ConfigError> mistakes = run.mistakes;
  // The checks below take longer for a large farm than an error may take.
  if (run.farm.pipelines.size() > most_checked_with_mistakes) refuse_all(mistakes);
  for (const ConfigError& mistake : check_requests(run.farm, cluster, rank_program())) mistakes.push_back(mistake);
  refuse_all(mistakes);
  if (const auto mistake = metric_mistake(run.farm, run.metric_location, rank_program())) throw *mistake;
  warn_of_shared_gpus(run);
  RunFolder folder = open_run_folder(farm_folder(run));
  if (reported_done(folder)) return exit_code::done;
  EventLoop loop;
  FarmSupervisor supervisor(loop, run, std::move(folder), std::move(cluster));
  const LauncherEvents events = supervisor.events();
  LocalLauncher launcher(loop, run.variables, events);
  loop.on_signal([&](int signal) { supervisor.stop(signal); });
  supervisor.start(launcher);
  loop.run_until([&] { return supervisor.over(); });
  loop.on_signal([](int) {});
  return supervisor.finish();
}

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

constexpr char refused_end[] = ".refused";
constexpr char request_end[] = ".request";
constexpr char code_line[] = "exit code ";
constexpr size_t longest_reason = 1 << 20;
constexpr int most_rungs = 64;  // 2^64 trials

std::vector<std::string> paths_with(const std::string& folder, const std::string& end) {
  std::vector<std::string> paths;
  for (const std::string& name : names_in(folder))
    if (name[0] != '.' && ends_in(name, end)) paths.push_back(folder + "/" + name);
  return paths;
}

}  // namespace

void make_subfolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return;
  const int reason = errno;
  refuse_link(path);
  struct stat status {};
  if (reason != EEXIST || stat(path.c_str(), &status) != 0)
    throw Error(Failure::output, path, ": cannot be created: ", strerror(reason));
  if (!S_ISDIR(status.st_mode))
    throw Error(Failure::output, path,
                ": is no folder, but the farm needs a folder there; move it away, or give "
                "another --output");
}

std::optional<ConfigError> occupied(const Pipeline& pipeline, const std::string& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return std::nullopt;
  const auto taken = [&](const std::string& what) {
    return ConfigError(pipeline.location, pipeline.name,
                       str(what, "; move it away, or give the pipeline another name, or the farm another --output"),
                       Failure::output);
  };
  if (!S_ISDIR(status.st_mode)) return taken(str(folder, ": is no folder, but the pipeline needs a folder there"));
  const std::string file = folder + "/summary.json";
  const Json summary = parsed_json(read_file_if_any(file));
  const std::string foreign = summary.is_object() ? foreign_key(summary) : "";
  if (foreign.empty()) return std::nullopt;
  return taken(str(file, ": has a `", foreign, "` that convoy would not write"));
}

void remove_stale_lock(const std::string& folder) {
  if (access((folder + "/.lock").c_str(), F_OK) != 0) return;
  try {
    const FolderLock lock(folder);
  } catch (const Error&) {  // the folder is not writable
  }
}

std::optional<ConfigError> differs(const Pipeline& pipeline, const std::string& folder, const Json& summary) {
  if (!summary.contains("config")) return std::nullopt;
  const bool done = summary.value("status", "") == "done";
  std::error_code none;
  if (!done && !std::filesystem::exists(folder + "/checkpoints", none)) return std::nullopt;
  const std::vector<std::string> may =
      done ? std::vector<std::string>{"train.resume", "train.pause_after"} : resumable_keys();
  const std::vector<Difference> found = differences(summary["config"], pipeline.config, may);
  if (found.empty()) return std::nullopt;
  std::vector<std::string> lines;
  for (const Difference& difference : found) lines.push_back(to_string(difference));
  return ConfigError(location_of(pipeline.config, found.front().key), found.front().key,
                     str("differs from the ", done ? "finished" : "unfinished", " run in ", folder, " (",
                         join(lines, "; "), "); give another --output, or the pipeline another name; ",
                         "train.resume=", folder, " resumes from its state"),
                     Failure::output);
}

// The kernel's list of locks names owners on this host. A shared lock, taken for a moment, detects owners on other
// hosts of a network file system.

LockOwner lock_owner(const std::string& run_folder) {
  LockOwner owner;
  const std::string path = run_folder + "/.lock";
  struct stat status {};
  // Another user may not open the file.
  if (lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) owner.pid = lock_owner_of(status);
  owner.held = owner.pid > 0;
  if (owner.held) return owner;
  owner.pid = -1;
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return owner;
  owner.held = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return owner;
}

void refuse_foreign(const std::string& folder, const char* what) {
  if (access(folder.c_str(), W_OK) != 0)
    throw Error(Failure::output, folder, ": belongs to another user; type this command as the user who started the ",
                what);
}

Answer wait_for_answer(const std::string& run_folder, double seconds, const std::function<bool()>& is_given) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const bool alive = lock_owner(run_folder).held;  // checked first: the process may answer and then end
    if (is_given()) return Answer::given;
    if (!alive) return Answer::ended;
    if (std::chrono::steady_clock::now() > end) return Answer::late;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

RunFolderRequest farm_folder(const FarmRun& run) {
  RunFolderRequest request;
  request.output = run.arguments.output;
  request.name = run.name;
  request.resume = "auto";
  request.resolved = run.resolved;
  request.grows = run.grows;
  return request;
}

int run_farm(FarmRun run) {
  if (run.mistakes.empty()) refuse_single_run_options(run);
  if (run.as.launcher == Launcher::none) return run_alone(run);
  if (!run.mistakes.empty()) {
    // The cluster is unknown before the slots have joined, and with mistakes they never do.
    for (const ConfigError& mistake : check_anywhere(run.farm, rank_program())) run.mistakes.push_back(mistake);
    refuse_all(run.mistakes);
  }
  return run_in_slots(run);
}

AttemptResult classify(const ProcessEnd& end, StopReason reason, const std::string& detail, const Json& found,
                       const std::string& limit_key, const std::string& last_message) {
  const Json summary = found.is_object() ? found : Json::object();  // a convoy that ended early wrote none
  if (end.ok()) {
    if (summary.value("status", "") == "done") return {AttemptResult::Outcome::done, false, exit_code::done, "", ""};
    return failed(exit_code::training, name_of(Failure::internal),
                  "its convoy ended with 0, but the status in its summary is not done", true);
  }
  // It has reached its rung, also if it was to stop for another reason, such as preemption.
  if (end.code == exit_code::stopped && summary.value("paused", false) && reason != StopReason::stopped)
    return {AttemptResult::Outcome::paused, true, exit_code::stopped, "", ""};
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
  if (complete || result.outcome == AttemptResult::Outcome::done || result.outcome == AttemptResult::Outcome::paused)
    return summary;
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

Inbox::Inbox(const std::string& run_folder) : folder_(run_folder + "/inbox") { make_subfolder(folder_); }

std::vector<std::string> Inbox::arrived() {
  struct stat status {};
  if (stat(folder_.c_str(), &status) != 0) return {};
  const bool same =
      status.st_mtim.tv_sec == changed_.tv_sec && status.st_mtim.tv_nsec == changed_.tv_nsec && !may_have_changed_;
  if (same) return {};
  changed_ = status.st_mtim;
  // File systems round time stamps, some to seconds.
  may_have_changed_ = time(nullptr) - status.st_mtim.tv_sec < 2;
  std::vector<std::string> paths = paths_with(folder_, ".yaml");
  for (std::string& path : paths_with(folder_, request_end)) paths.push_back(std::move(path));
  return paths;
}

bool Inbox::is_request(const std::string& path) { return ends_in(path, request_end); }

std::vector<std::string> Inbox::taken() const { return paths_with(folder_, ".yaml.taken"); }

void Inbox::take(const std::string& path) const {
  if (rename(path.c_str(), (path + ".taken").c_str()) != 0)
    throw Error(Failure::io, path, ": cannot be renamed: ", strerror(errno));
}

void Inbox::refuse(const std::string& path, const Error& reason) const {
  write_whole(path + refused_end, str(reason.what(), "\n", code_line, exit_code_of(reason.kind()), "\n"), true);
  unlink(path.c_str());
}

std::unique_ptr<Error> Inbox::refusal(const std::string& path) {
  struct stat status {};
  if (stat((path + refused_end).c_str(), &status) != 0) return nullptr;
  std::string reason = read_file(path + refused_end, longest_reason);
  reason.erase(reason.find_last_not_of("\n ") + 1);
  const size_t last = reason.rfind(str("\n", code_line));
  if (last == std::string::npos) return std::make_unique<Error>(Failure::config, reason);
  const int code = std::atoi(reason.c_str() + last + 1 + strlen(code_line));
  return std::make_unique<Error>(failure_of_exit(code), reason.substr(0, last));
}

Journal::Journal(const std::string& run_folder)
    : path_(run_folder + "/journal.jsonl"), file_(open_to_append_lines(path_)) {}

void Journal::write(const std::string& pipeline, const std::string& event, int attempt, const Json& details) {
  Json line = {{"time", unix_seconds()}, {"pipeline", pipeline}, {"event", event}, {"attempt", attempt}};
  line.update(details);
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // One write() in append mode: readers never see a part of a line, or two mixed lines.
  write_all(file_.get(), text, path_);
  written_ = true;
}

void Journal::sync() {
  if (!std::exchange(written_, false)) return;
  if (fdatasync(file_.get()) != 0) throw Error(Failure::io, path_, ": cannot be flushed: ", strerror(errno));
}

std::map<std::string, JournalRecord> read_journal(const std::string& run_folder) {
  std::map<std::string, JournalRecord> records;
  for_each_object(run_folder + "/journal.jsonl", [&](const Json& line) {
    if (!line.contains("event") || !line.contains("pipeline") || !line["pipeline"].is_string()) return;
    JournalRecord& record = records[line["pipeline"].get<std::string>()];
    const Json& event = line["event"];
    const auto rung = static_cast<int>(whole_in(line, "rung", -1));
    if (event.is_string() && event != "priority") record.event = event.get<std::string>();
    if (event == "started") {
      ++record.starts;
      record.cancelled = false;
    } else if (event == "cancelled") {
      record.cancelled = line.value("by_request", false);
    } else if (event == "lost") {
      record.lost_at = rung;
    } else if (event == "paused" && rung >= 0 && rung < most_rungs) {
      const auto at = static_cast<size_t>(rung);
      if (record.rung_values.size() <= at) record.rung_values.resize(at + 1);
      record.rung_values[at] = std::nullopt;
      if (line.contains("value") && line["value"].is_number()) record.rung_values[at] = line["value"].get<double>();
    }
  });
  return records;
}

}  // namespace convoy
