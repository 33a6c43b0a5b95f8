// Starts pipelines on this host. Each is a `convoy run` in a separate process group, bound to its cores. It sees only
// its GPUs, and no rank variables of a launcher. Watches the resources of each pipeline.
//
// Threads: the event loop's. Construct it before any other thread. The end of this process ends all pipelines: the
// kernel kills each `convoy` with its parent, and the pipeline's ranks and guard end themselves.
#pragma once
#include <sys/types.h>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/farm/monitor/resources.h"
#include "launch/farm/run/farm.h"
#include "launch/job/agent.h"
#include "launch/machine/environment.h"

namespace convoy {

// A cgroup that bounds the memory of a pipeline's processes, if this process may create one.
//
// A memory limit counts anonymous memory. The watch (resources.h) reads that at least once a second; the cgroup bounds
// growth between two reads. A cgroup also counts pages of files, and the kernel would evict and reread those rather
// than kill a process. So the bound is 1.25 times the limit, plus the present pages of files and shared memory, plus
// 512 MiB. It is updated a few times a second. Supports cgroup versions 1 and 2. Without root, and in most containers,
// there is no cgroup and only the watch. Threads: one. Failure: null with the reason.
class MemoryCgroup {
 public:
  static constexpr double follow_files_every = 0.25;  // seconds

  // Creates a child of this process's cgroup. `root`: prefix of /proc and /sys, for tests. Null: `why` is the reason.
  static std::unique_ptr<MemoryCgroup> make(const std::string& name, int64_t limit, std::string& why,
                                            const std::string& root = "");
  ~MemoryCgroup();  // removes it; its processes must have ended
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  bool add(pid_t pid);                      // and processes that it starts later
  void follow_files();                      // updates the bound; call it every follow_files_every seconds
  int64_t bytes() const { return bytes_; }  // the present bound
  bool killed_some() const;  // true if the kernel killed a process because of the memory limit of this cgroup
  const std::string& folder() const { return folder_; }

 private:
  MemoryCgroup(std::string folder, bool v2, int64_t anonymous)
      : folder_(std::move(folder)), v2_(v2), anonymous_(anonymous) {}
  bool bound(int64_t bytes);

  std::string folder_;
  bool v2_;            // cgroup version 2, else 1
  int64_t anonymous_;  // bytes; the bound without its part for files
  int64_t bytes_ = 0;
};

class LocalLauncher : public PipelineLauncher {
 public:
  // `variables`: environment for pipelines; the launcher leaves out rank variables. `events` must outlive the launcher.
  LocalLauncher(EventLoop& loop, const Variables& variables, const LauncherEvents& events);
  ~LocalLauncher() override;
  LocalLauncher(const LocalLauncher&) = delete;
  LocalLauncher& operator=(const LocalLauncher&) = delete;

  void start(int slot, const LaunchSpec& spec) override;  // `slot` counts for launchers of several hosts only
  void ask_to_stop(int job) override;
  void kill(int job) override;
  void kill_all();
  bool idle() const { return agent_.idle(); }

 private:
  pid_t start_process(const LaunchSpec& spec);
  void sampled(const std::vector<ResourceSample>& samples);
  void over_limit(const std::string& name, const std::string& what);
  void ended(int job, const ProcessEnd& end);

  EventLoop& loop_;
  const Variables variables_;
  const LauncherEvents& events_;
  struct Started {
    pid_t pid = -1;
    std::string name;
    int64_t gpu_memory = 0;  // as watched_gpu_memory
    int64_t memory = 0;
    std::unique_ptr<MemoryCgroup> cgroup;  // null: no limit, or cgroups are not available
  };
  std::unique_ptr<MemoryCgroup> make_cgroup(const LaunchSpec& spec, pid_t pid);
  void follow_files();
  EventLoop::TimerId follow_timer_ = 0;  // 0: no cgroups
  bool logged_no_cgroup_ = false;
  std::map<int, Started> started_;
  Agent agent_;
  ResourceWatch watch_;
};

}  // namespace convoy
