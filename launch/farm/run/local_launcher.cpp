#include "launch/farm/run/local_launcher.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "launch/machine/gpus.h"
#include "launch/process/orphan_guard.h"

namespace convoy {
namespace {

constexpr int tries_to_remove = 20;  // a killed process leaves its cgroup a moment later
// Increase of file pages between two calls of follow_files(), at the rate of `growth` in resources.cpp.
constexpr int64_t room_for_files = 512 << 20;

struct CgroupFolder {
  std::string folder;  // folder of this process's cgroup
  bool v2 = false;
};

std::optional<CgroupFolder> self_cgroup(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::optional<CgroupFolder> v2;
  for (const OwnCgroup& group : own_cgroups(root)) {
    if (group.has("memory")) return CgroupFolder{mount + "/memory" + group.path, false};
    if (group.controllers.empty()) v2 = CgroupFolder{mount + group.path, true};
  }
  return v2;
}

// Removes empty cgroups of dead supervisors.
void remove_stale_cgroups(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    int owner = 0;
    if (sscanf(name.c_str(), "convoy-%d-", &owner) != 1 || owner <= 0 || owner == getpid()) continue;
    if (kill(owner, 0) != 0 && errno == ESRCH) rmdir((folder + name).c_str());
  }
}

bool write_line(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  return bool(file);
}

}  // namespace

// Each rank's allocator enforces the limit; this bounds memory outside the allocators.
int64_t watched_gpu_memory(const LaunchSpec& spec) {
  return spec.gpu_memory > 0 ? (spec.gpu_memory + outside_allocator) * static_cast<int64_t>(spec.gpus.size()) : 0;
}

LocalLauncher::LocalLauncher(EventLoop& loop, const Variables& variables, const LauncherEvents& events)
    : loop_(loop),
      variables_(without_ranks(variables)),
      events_(events),
      agent_(loop, {[this](int job, const std::string& line) { events_.on_line(job, line); },
                    [this](int job, const ProcessEnd& end) { ended(job, end); }}),
      watch_(
          loop, [this](const std::vector<ResourceSample>& samples) { sampled(samples); },
          [this](const ResourceSample& sample, int64_t limit) {
            over_limit(sample.pipeline,
                       str("used ", human_bytes(sample.memory), " of anonymous memory, above its limit of ",
                           human_bytes(limit), " (memory)"));
          }) {}

LocalLauncher::~LocalLauncher() {
  if (follow_timer_ != 0) loop_.cancel(follow_timer_);
  kill_all();
}

void LocalLauncher::start(int, const LaunchSpec& spec) {
  try {
    events_.on_started(spec.job, start_process(spec));
  } catch (const Error& error) {
    events_.on_refused(spec.job, exit_code_of(error), error.what());
  }
}

pid_t LocalLauncher::start_process(const LaunchSpec& spec) {
  ProcessStart start;
  start.argv = {program_path(), "run", spec.folder + "/pipeline.yaml", "--output", spec.folder};
  for (const std::string& fault : spec.inject) {
    start.argv.push_back("--inject");
    start.argv.push_back(fault);
  }
  start.environment = variables_;
  start.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  if (!spec.gpus.empty()) start.environment["CUDA_VISIBLE_DEVICES"] = join(spec.gpus, ",");
  if (spec.hide_gpus) start.environment["CUDA_VISIBLE_DEVICES"] = "";
  if (spec.gpu_memory > 0 && !spec.gpus.empty())
    start.environment[gpu_memory_variable] = std::to_string(spec.gpu_memory);
  start.cores = spec.cores;
  const pid_t pid = agent_.start(spec.job, start);
  // Its ranks inherit the niceness.
  if (spec.nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(pid), getpriority(PRIO_PROCESS, 0) + spec.nice);
  started_[spec.job] = {pid, spec.name, watched_gpu_memory(spec), spec.memory, make_cgroup(spec, pid)};
  watch_.add({spec.name, pid, spec.memory, spec.gpus});
  return pid;
}

// The process has no children yet, because it first reads its configuration.
std::unique_ptr<MemoryCgroup> LocalLauncher::make_cgroup(const LaunchSpec& spec, pid_t pid) {
  if (spec.memory <= 0) return nullptr;
  std::string why;
  auto cgroup = MemoryCgroup::make(spec.name, spec.memory, why);
  if (cgroup && !cgroup->add(pid)) {
    why = "the process could not be put into " + cgroup->folder();
    cgroup.reset();
  }
  if (!cgroup && !std::exchange(logged_no_cgroup_, true))
    events_.on_line(spec.job, str("no cgroup limits the memory, so it is only sampled: ", why));
  if (cgroup && follow_timer_ == 0) follow_files();
  return cgroup;
}

void LocalLauncher::follow_files() {
  bool any = follow_timer_ == 0;  // start() adds the first cgroup after this call
  for (const auto& [job, started] : started_) {
    if (!started.cgroup) continue;
    started.cgroup->follow_files();
    any = true;
  }
  follow_timer_ = 0;
  if (!any) return;
  follow_timer_ = loop_.after(std::chrono::milliseconds(static_cast<int64_t>(MemoryCgroup::follow_files_every * 1000)),
                              [this] { follow_files(); });
}

void LocalLauncher::ask_to_stop(int job) {
  const auto found = started_.find(job);
  if (found != started_.end()) ::kill(found->second.pid, SIGTERM);
}

// Kills descendants first: those in other process groups would be reparented once it ends.
void LocalLauncher::kill(int job) {
  const auto found = started_.find(job);
  if (found == started_.end()) return;
  const pid_t pid = found->second.pid;
  ::kill(pid, SIGSTOP);  // it must start no others meanwhile
  for (pid_t descendant : descendants_of(pid)) ::kill(descendant, SIGKILL);
  ::kill(-pid, SIGKILL);
  ::kill(pid, SIGKILL);
}

void LocalLauncher::kill_all() {
  for (const auto& started : started_) kill(started.first);
}

void LocalLauncher::sampled(const std::vector<ResourceSample>& samples) {
  events_.on_samples(samples);
  for (const ResourceSample& sample : samples) {
    const auto found = std::find_if(started_.begin(), started_.end(),
                                    [&](const auto& started) { return started.second.name == sample.pipeline; });
    if (found == started_.end() || sample.gpu_of_device) continue;
    const int64_t limit = found->second.gpu_memory;
    if (limit > 0 && sample.gpu_memory > limit)
      over_limit(sample.pipeline, str("used ", human_bytes(sample.gpu_memory),
                                      " of GPU memory, above its limit, which with the memory of CUDA itself is ",
                                      human_bytes(limit), " (gpu_memory)"));
  }
}

void LocalLauncher::over_limit(const std::string& name, const std::string& what) {
  const auto found =
      std::find_if(started_.begin(), started_.end(), [&](const auto& started) { return started.second.name == name; });
  if (found == started_.end()) return;
  kill(found->first);
  events_.on_over_limit(found->first, what);
}

void LocalLauncher::ended(int job, const ProcessEnd& end) {
  const Started& started = started_.at(job);
  const std::string name = started.name;
  if (started.cgroup && started.cgroup->killed_some())
    events_.on_over_limit(job, str("was ended by the kernel: its memory, pages of files included, grew at once past ",
                                   human_bytes(started.cgroup->bytes()), "; its limit is ", human_bytes(started.memory),
                                   " of anonymous memory (memory)"));
  started_.erase(job);
  events_.on_end(job, end, watch_.remove(name));
}

std::unique_ptr<MemoryCgroup> MemoryCgroup::make(const std::string& name, int64_t limit, std::string& why,
                                                 const std::string& root) {
  const std::optional<CgroupFolder> parent = self_cgroup(root);
  std::error_code none;
  if (!parent || !std::filesystem::is_directory(parent->folder, none)) {
    why = "no memory cgroup of this process is visible";
    return nullptr;
  }
  std::string folder = parent->folder;
  if (folder.back() != '/') folder += '/';
  remove_stale_cgroups(folder);
  folder += str("convoy-", getpid(), "-", name);
  // A cgroup of this name is from an earlier start; its counts would be wrong here.
  if (mkdir(folder.c_str(), 0755) != 0 &&
      (errno != EEXIST || ((rmdir(folder.c_str()) != 0 || mkdir(folder.c_str(), 0755) != 0) && errno != EBUSY))) {
    why = str(folder, ": ", strerror(errno));
    return nullptr;
  }
  std::unique_ptr<MemoryCgroup> group(new MemoryCgroup(folder, parent->v2, limit + limit / 4));
  if (!group->bound(group->anonymous_ + room_for_files)) {
    why = str(folder, ": the memory controller is not enabled for groups below this one");
    return nullptr;
  }
  if (parent->v2) write_line(folder + "/memory.swap.max", "0");  // the file is missing without swap
  return group;
}

// Version 1 has a second limit, on memory with swap, which must never be below the first.
bool MemoryCgroup::bound(int64_t bytes) {
  const std::string text = std::to_string(bytes);
  const bool raised = bytes > bytes_;
  const auto with_swap = [&] {
    if (!v2_) write_line(folder_ + "/memory.memsw.limit_in_bytes", text);
  };
  if (raised && bytes_ > 0) with_swap();
  if (!write_line(folder_ + (v2_ ? "/memory.max" : "/memory.limit_in_bytes"), text)) return false;
  if (!raised || bytes_ == 0) with_swap();
  bytes_ = bytes;
  return true;
}

void MemoryCgroup::follow_files() {
  std::ifstream file(folder_ + "/memory.stat");
  const std::string wanted = v2_ ? "file" : "total_cache";  // both include shared memory
  std::string key;
  for (int64_t bytes = 0; file >> key >> bytes;) {
    if (key != wanted) continue;
    const int64_t now = anonymous_ + room_for_files + bytes;
    if (std::abs(now - bytes_) > room_for_files / 16) bound(now);
    return;
  }
}

MemoryCgroup::~MemoryCgroup() {
  for (int i = 0; i < tries_to_remove && rmdir(folder_.c_str()) != 0 && errno == EBUSY; ++i) usleep(5000);
}

bool MemoryCgroup::add(pid_t pid) { return write_line(folder_ + "/cgroup.procs", std::to_string(pid)); }

bool MemoryCgroup::killed_some() const {
  std::ifstream file(folder_ + (v2_ ? "/memory.events" : "/memory.oom_control"));
  std::string key;
  for (int64_t count = 0; file >> key >> count;)
    if (key == "oom_kill" && count > 0) return true;
  return false;
}

}  // namespace convoy
