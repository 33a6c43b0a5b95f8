#include "launch/farm/run/local_launcher.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "launch/machine/gpus.h"
#include "launch/process/orphan_guard.h"

namespace convoy {

// Each rank's allocator enforces the limit; this bounds memory outside the allocators.
int64_t watched_gpu_memory(const LaunchSpec& spec) {
  return spec.gpu_memory > 0 ? (spec.gpu_memory + outside_allocator) * static_cast<int64_t>(spec.gpus.size()) : 0;
}

LocalLauncher::LocalLauncher(EventLoop& loop, const Variables& variables, LauncherEvents events)
    : loop_(loop),
      variables_(without_ranks(variables)),
      events_(std::move(events)),
      agent_(loop, {[this](int job, const std::string& line) { events_.on_line(job, line); },
                    [this](int job, const ProcessEnd& end) { ended(job, end); }}),
      watch_(
          loop, [this](const std::vector<ResourceSample>& samples) { sampled(samples); },
          [this](const ResourceSample& sample, int64_t limit) {
            over_limit(sample.pipeline, str("took ", human_bytes(static_cast<double>(sample.memory)),
                                            " of anonymous memory, and its limit is ",
                                            human_bytes(static_cast<double>(limit)), " (memory)"));
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
    events_.on_line(spec.job, str("memory is watched only, and no cgroup bounds it: ", why));
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
      over_limit(sample.pipeline, str("took ", human_bytes(static_cast<double>(sample.gpu_memory)),
                                      " of its GPUs' memory, and its limit, with what CUDA itself needs, is ",
                                      human_bytes(static_cast<double>(limit)), " (gpu_memory)"));
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
    events_.on_over_limit(job, str("was ended by the kernel: it took so much at once that it passed ",
                                   human_bytes(static_cast<double>(started.cgroup->bytes())),
                                   ", what its files take included, and its limit is ",
                                   human_bytes(static_cast<double>(started.memory)), " of anonymous memory (memory)"));
  started_.erase(job);
  events_.on_end(job, end, watch_.remove(name));
}

}  // namespace convoy
