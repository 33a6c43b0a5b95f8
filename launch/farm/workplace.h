// Pipelines that run on this host: each is a `convoy run` of its own, in a process group of its own, bound to its cores,
// shown its GPUs alone, with an environment that tells of no rank. Their resources are watched where they run.
//
// Threads: the event loop's. Make it before any other thread. What ends this process ends them all: the kernel kills each
// `convoy` with its parent, and that one's ranks and guard do the rest.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/environment.h"
#include "launch/farm/memory_group.h"
#include "launch/farm/resources.h"

namespace convoy {

struct PipelineOrder {
  int job = 0;  // the supervisor's number for it
  std::string name;
  std::string folder;  // its run folder, absolute; pipeline.yaml in it is its configuration
  std::vector<int> cores;
  std::vector<std::string> gpus;  // UUIDs
  bool hide_gpus = false;         // the host has some and it gets none
  int64_t memory = 0;             // bytes; 0: no limit
  int64_t gpu_memory = 0;
  int nice = 0;
  std::vector<std::string> faults;  // --inject
};
Json to_json(const PipelineOrder& order);
PipelineOrder order_from_json(const Json& json);
// Bytes on all of its GPUs together at which it is killed, its allocator's limit notwithstanding; 0: none.
int64_t watched_gpu_memory(const PipelineOrder& order);

struct WorkplaceEvents {
  std::function<void(int job, const std::string& line)> on_line;
  std::function<void(int job, const ProcessEnd& end, const ResourceSample& used)> on_end;
  std::function<void(const std::vector<ResourceSample>&)> on_samples;
  std::function<void(int job, const std::string& what)> on_over_limit;  // it has been killed already
};

class Workplace {
 public:
  // `variables` of the environment, ranks' and all.
  Workplace(EventLoop& loop, const Variables& variables, WorkplaceEvents events);
  ~Workplace();  // kills what is left
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  pid_t start(const PipelineOrder& order);  // throws what start_process throws
  void ask_to_stop(int job);                // it saves after its step and ends with 143
  void kill(int job);                       // with everything that it has started
  void kill_all();
  bool idle() const { return agent_.idle(); }

 private:
  void sampled(const std::vector<ResourceSample>& samples);
  void over_limit(const std::string& name, const std::string& what);
  void ended(int job, const ProcessEnd& end);

  EventLoop& loop_;
  const Variables variables_;
  WorkplaceEvents events_;
  struct Started {
    pid_t pid = -1;
    std::string name;
    int64_t gpu_memory = 0;  // bytes on all of its GPUs at which it is killed; 0: no limit
    int64_t memory = 0;
    std::unique_ptr<MemoryGroup> group;  // null: no limit, or none may be made
  };
  std::unique_ptr<MemoryGroup> memory_group(const PipelineOrder& order, pid_t pid);
  void follow_files();
  EventLoop::TimerId following_ = 0;  // while there are groups
  bool told_ungrouped_ = false;
  std::map<int, Started> started_;
  Agent agent_;
  ResourceWatch watch_;
};

}  // namespace convoy
