// What each pipeline of a farm uses of this host: CPU time, anonymous memory, GPUs; and which one outgrew its limit.
//
// A pipeline is the tree of processes below the `convoy` that runs it, also those that outlive their parent. Once a
// second the trees are read from /proc and the GPUs through NVML; a pipeline with a memory limit is looked at more often
// the nearer it comes to it, from once a second to ten times, so that its end is told within a second of passing the
// limit. Only anonymous memory counts, with what was swapped out: mappings of data that others map too cost nothing more.
// Where many processes would make this cost more than a quarter of a percent of a core, samples come less often; looks at limits
// do not, beyond a second.
//
// Threads: reads in a thread of its own, so that a driver that takes its time holds up nobody; callbacks come by
// EventLoop::post, in the loop's thread. Make it after the loop (which blocks the signals) and end it before the loop.
// All members are called from the loop's thread. Failure: what cannot be read is left out of a sample, never an error.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/options.h"
#include "launch/event_loop.h"

namespace convoy {

struct ResourceSample {
  std::string pipeline;
  double time = 0;          // unix seconds
  double cpu = 0;           // cores kept busy since the sample before: 1 is one whole core
  double cpu_seconds = 0;   // since it was added; of a process that ended up to a second may be missing
  int64_t memory = 0;       // bytes of anonymous memory, resident or swapped out
  int64_t memory_peak = 0;  // the largest of these so far, looks between samples included
  int64_t mapped = 0;       // bytes resident of mapped files and shared memory, counted once for each process
  int processes = 0;
  double gpu = -1;             // share of the time in which its GPUs had work, their mean, 0…1; -1: it has none
  int64_t gpu_memory = -1;     // bytes, summed over its GPUs
  bool gpu_of_device = false;  // gpu figures are those of the whole devices: the driver tells them by no process here
};
// A line of metrics.jsonl: {"kind": "resources", "pipeline", "time", "cpu", "cpu_seconds", "memory_bytes",
// "memory_peak_bytes", "mapped_bytes", "processes", "gpu", "gpu_memory_bytes"}; the last two only where it has GPUs.
Json to_json(const ResourceSample& sample);
ResourceSample resource_sample(const Json& line);  // what is missing keeps its default

struct WatchedPipeline {
  std::string name;
  pid_t pid = -1;                 // of its `convoy`, a child that is not waited for yet
  int64_t memory_limit = 0;       // bytes; 0: none
  std::vector<std::string> gpus;  // UUIDs
};

class ResourceWatch {
 public:
  // Of every pipeline one sample, once a second.
  using OnSamples = std::function<void(const std::vector<ResourceSample>&)>;
  // Once for each pipeline added: `sample` holds what was found, also above `limit`.
  using OnOverLimit = std::function<void(const ResourceSample& sample, int64_t limit)>;

  ResourceWatch(EventLoop& loop, OnSamples on_samples, OnOverLimit on_over_limit);
  ~ResourceWatch();  // callbacks that wait in the loop are dropped
  ResourceWatch(const ResourceWatch&) = delete;
  ResourceWatch& operator=(const ResourceWatch&) = delete;

  void add(const WatchedPipeline& pipeline);  // a name that is watched already: the new process takes its place
  // Ends the watch, by the time the last process of a pipeline is gone. What it used in all, cpu being that of its last
  // second; an empty sample with its name where it was not watched long enough.
  ResourceSample remove(const std::string& name);

  // CPU seconds that all of this has cost so far.
  double cost() const;

 private:
  struct Inner;
  std::shared_ptr<Inner> inner_;
};

// Where samples go: RUN/metrics.jsonl, and RUN/resources.json with the last sample of each pipeline, which `convoy top`
// reads. A line per pipeline every second in its first minute, then ever less often (a sixtieth of its age, a minute at
// most), and one at its end: a farm of weeks has no gigabytes of them. Threads: one. Failure: Error(io) when the files
// cannot be opened; afterwards a disk that is full costs lines, never the farm.
class ResourceLog {
 public:
  explicit ResourceLog(const std::string& run_folder);
  ~ResourceLog();
  ResourceLog(const ResourceLog&) = delete;
  ResourceLog& operator=(const ResourceLog&) = delete;
  void write(const std::vector<ResourceSample>& samples);
  void end(const ResourceSample& last);  // of an attempt: its last line, and within a second out of resources.json

 private:
  struct Inner;
  std::unique_ptr<Inner> inner_;
};

}  // namespace convoy
