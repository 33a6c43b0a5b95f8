// Starts pipelines on this host. Each is a `convoy run` in its own process group, bound to its cores. It sees only its
// GPUs and no launcher's rank variables. Watches the resources of each pipeline.
//
// Threads: the event loop's. Construct it before any other thread. The end of this process ends all pipelines: the
// kernel kills each `convoy` with its parent, and the pipeline's ranks and guard end themselves.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/farm/monitor/memory_cgroup.h"
#include "launch/farm/monitor/resources.h"
#include "launch/farm/run/pipeline_launcher.h"
#include "launch/job/agent.h"
#include "launch/machine/environment.h"

namespace convoy {

class LocalLauncher : public PipelineLauncher {
 public:
  // `variables`: of the environment; it removes rank variables.
  LocalLauncher(EventLoop& loop, const Variables& variables, LauncherEvents events);
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
  LauncherEvents events_;
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
