#include "launch/farm/run/farm.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "core/base/text.h"
#include "core/config/run_config.h"
#include "core/files/files.h"
#include "core/inject/fault.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/run/local_launcher.h"
#include "launch/farm/run/supervisor.h"
#include "launch/farm/schedule/slots.h"
#include "launch/job/run_attempt.h"
#include "launch/job/summary.h"
#include "launch/machine/gpus.h"
#include "launch/machine/topology.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/exit_codes.h"

namespace convoy {

void make_subfolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return;
  const int reason = errno;
  refuse_link(path);
  struct stat status {};
  if (reason != EEXIST || stat(path.c_str(), &status) != 0)
    throw Error(Failure::output, str(path, ": cannot be created: ", strerror(reason)));
  if (!S_ISDIR(status.st_mode))
    throw Error(Failure::output, str(path,
                                     ": is no folder, and a farm needs one of that name; move it away, or give "
                                     "another --output"));
}

std::optional<ConfigError> occupied(const Pipeline& pipeline, const std::string& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return std::nullopt;
  const auto taken = [&](const std::string& what) {
    return ConfigError(pipeline.mark, pipeline.name,
                       str(what, "; move it away, or give the pipeline another name, or the farm another --output"),
                       Failure::output);
  };
  if (!S_ISDIR(status.st_mode)) return taken(str(folder, ": is no folder, and the pipeline needs one of that name"));
  const std::string file = folder + "/summary.json";
  const Json summary = Json::parse(read_file_if_any(file), nullptr, false);
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
  const std::vector<std::string> may = done ? std::vector<std::string>{"train.resume"} : resumable_keys();
  const std::vector<Difference> found = differences(summary["config"], pipeline.config, may);
  if (found.empty()) return std::nullopt;
  std::vector<std::string> lines;
  for (const Difference& difference : found) lines.push_back(to_string(difference));
  return ConfigError(mark_of(pipeline.config, found.front().key), found.front().key,
                     str("differs from the ", done ? "finished" : "unfinished", " run in ", folder, " (",
                         join(lines, "; "), "); give another --output, or the pipeline another name; ",
                         "train.resume=", folder, " continues from its state"),
                     Failure::output);
}

// The kernel's list of locks names owners on this host. A shared lock, taken for a moment, detects owners on other
// hosts of a network file system.

LockOwner lock_owner(const std::string& run_folder) {
  LockOwner owner;
  const int fd = open((run_folder + "/.lock").c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return owner;
  struct stat status {};
  if (fstat(fd, &status) == 0) owner.pid = lock_owner_of(status);
  owner.held = owner.pid > 0;
  if (!owner.held) {
    owner.held = flock(fd, LOCK_SH | LOCK_NB) != 0;
    owner.pid = -1;
  }
  close(fd);
  return owner;
}

namespace {

void refuse_single_run_options(const FarmRun& run) {
  if (!run.arguments.hosts.empty())
    throw Error(
        Failure::command_line,
        "--hosts is for one run; a farm over several hosts is started inside one mpirun or srun, whose ranks are its "
        "slots");
  if (run.arguments.ranks > 0)
    throw Error(Failure::command_line, "--ranks is for one run; give the pipelines launch.ranks, or max_parallel");
  for (const std::string& fault : run.arguments.faults) {
    const size_t slash = fault.find('/');
    std::vector<std::string> names;
    bool known = false;
    for (const Pipeline& pipeline : run.farm.pipelines) {
      names.push_back(pipeline.name);
      known = known || pipeline.name == fault.substr(0, slash);
    }
    if (slash == std::string::npos || !known)
      throw Error(Failure::command_line, str("--inject ", fault, ": names no pipeline; write NAME/FAULT, such as ",
                                             names.front(), "/kill@step=50"));
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

int run_alone(FarmRun& run) {
  Cluster cluster = cluster_of(this_host({true, false}));
  std::vector<ConfigError> mistakes = run.mistakes;
  for (const ConfigError& mistake : check_requests(run.farm, cluster, rank_program())) mistakes.push_back(mistake);
  refuse_all(mistakes);
  if (const auto mistake = metric_mistake(run.farm, run.metric_mark, rank_program())) throw *mistake;
  warn_of_shared_gpus(run);
  RunFolder folder = open_run_folder(farm_folder(run));
  if (reported_done(folder)) return exit_code::done;
  EventLoop loop;
  FarmSupervisor supervisor(loop, run, std::move(folder), std::move(cluster));
  LocalLauncher launcher(loop, run.variables, supervisor.events());
  loop.on_signal([&](int signal) { supervisor.stop(signal); });
  supervisor.start(launcher);
  loop.run_until([&] { return supervisor.over(); });
  loop.on_signal([](int) {});
  return supervisor.finish();
}

}  // namespace

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

}  // namespace convoy
