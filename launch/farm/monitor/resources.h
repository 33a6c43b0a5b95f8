// Resources of process trees and pipelines on this host: ProcessTrees reads them, ResourceWatch samples them and checks
// memory limits, and ResourceLog writes them to files.
#pragma once
#include <dirent.h>
#include <sys/types.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/json.h"
#include "core/files/files.h"
#include "launch/machine/gpus.h"
#include "launch/process/event_loop.h"

namespace convoy {

// --- ProcessTrees: CPU time and memory of process trees, from /proc ---

struct MemoryUse {
  int64_t anonymous = 0;  // bytes, resident or swapped out
  int64_t mapped = 0;     // resident bytes of files and shared memory
};

// ProcessTrees: finds the processes of each tree, and sums their CPU time and memory.
//
// A pass is cheap: most read only known processes. A process joins the tree of its parent, and stays in it when the
// parent ends. If the parent ended before the process was seen, it joins the tree of its process group. Threads: one.
// Failure: a process that cannot be read has ended.
class ProcessTrees {
 public:
  ProcessTrees();
  void add(const std::string& tree, pid_t root);
  void remove(const std::string& tree);

  // Finds new processes, drops ended ones, and sums CPU time. With few trees, and without `all`, nine of ten calls read
  // only the known processes and the children of their first threads; the others read all of /proc.
  void refresh(bool all = false);
  // Memory of the processes that the last refresh found, read now.
  MemoryUse memory(const std::string& tree) const;
  double cpu_seconds(const std::string& tree) const;            // up to the last refresh, with ended processes
  std::vector<pid_t> processes(const std::string& tree) const;  // living, as of the last refresh

 private:
  struct Process {
    std::string tree;
    uint64_t started = 0;  // distinguishes processes with the same id; 0: not read yet
    uint64_t ticks = 0;
    bool ended = false;  // a zombie
  };
  struct Tree {
    uint64_t ticks = 0;
    std::unordered_set<pid_t> processes;
  };
  struct Stat;
  static bool read_stat(pid_t pid, Stat& stat);
  void refresh_from_proc();
  void refresh_descendants();
  static bool same(const Process& process, const Stat& stat);
  void update(pid_t pid, Process& process, const Stat& stat);
  void join(pid_t pid, const std::string& tree, const Stat& stat);
  void drop(pid_t pid);
  void assign(const std::unordered_map<pid_t, Stat>& fresh);

  struct Closer {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  std::unique_ptr<DIR, Closer> proc_;
  bool swap_ = false;                // this host has swap
  bool has_children_files_ = false;  // /proc/PID/task/TID/children exists
  uint64_t passes_ = 0;
  std::map<std::string, Tree> trees_;
  std::unordered_map<pid_t, Process> processes_;   // processes of all trees
  std::unordered_map<pid_t, std::string> groups_;  // their process groups → tree
  std::unordered_set<pid_t> strangers_;            // processes of no tree
};

// --- ResourceSample: resources that one pipeline uses ---

struct ResourceSample {
  std::string pipeline;
  double time = 0;          // unix seconds
  double cpu = 0;           // busy cores since the previous sample; 1 is one core
  double cpu_seconds = 0;   // since add(); up to a second of ended processes may be missing
  int64_t memory = 0;       // bytes of anonymous memory, resident or swapped out
  int64_t memory_peak = 0;  // maximum of `memory`, also between samples
  int64_t mapped = 0;       // resident bytes of mapped files and shared memory, counted for each process
  int processes = 0;
  double gpu = -1;             // fraction of time in which its GPUs were busy, mean over them, 0…1; -1: no GPUs
  int64_t gpu_memory = -1;     // bytes, sum over its GPUs
  bool gpu_of_device = false;  // GPU values are of whole devices: the driver reports no processes
};
// A line of metrics.jsonl: {"kind": "resources", "pipeline", "time", "cpu", "cpu_seconds", "memory_bytes",
// "memory_peak_bytes", "mapped_bytes", "processes", "gpu", "gpu_memory_bytes", "gpu_of_device": true}; the last three
// only for a pipeline with GPUs.
Json to_json(const ResourceSample& sample);
ResourceSample resource_sample(const Json& line);  // missing fields keep their defaults
// Updates `sample` to the present use of a tree. `elapsed`: seconds since its last update; 0: `cpu` stays.
void measure(const ProcessTrees& trees, const std::string& tree, double elapsed, ResourceSample& sample);

// --- ResourceWatch: measures the pipelines of a farm on this host ---

struct WatchedPipeline {
  std::string name;
  pid_t pid = -1;                 // its `convoy`, a child not yet waited for
  int64_t memory_limit = 0;       // bytes; 0: none
  std::vector<std::string> gpus;  // UUIDs
};

// Measures each pipeline of a farm on this host: CPU time, anonymous memory and GPUs. Reports pipelines above their
// memory limit.
//
// A pipeline is the process tree of the `convoy` that runs it, with processes that outlive their parent. Trees are read
// from /proc, and GPUs through NVML, once a second. A pipeline with a memory limit is read more often near its limit,
// up to ten times a second. So it is reported within a second. A limit counts anonymous memory, resident or swapped
// out. It does not count shared mappings of data. If samples cost more than 0.25 % of a core, they become less
// frequent; limits are still read at least once a second.
//
// Threads: reads in a separate thread, so a slow driver blocks nothing. Callbacks run in the loop's thread, by
// EventLoop::post. Construct it after the loop, which blocks the signals, and destroy it before the loop. Call all
// members from the loop's thread. Failure: a sample leaves out what cannot be read.
class ResourceWatch {
 public:
  // One sample of every pipeline, once a second.
  using OnSamples = std::function<void(const std::vector<ResourceSample>&)>;
  // Called at most once for each add(), when `sample` exceeds `limit`.
  using OnOverLimit = std::function<void(const ResourceSample& sample, int64_t limit)>;

  ResourceWatch(EventLoop& loop, OnSamples on_samples, OnOverLimit on_over_limit);
  ~ResourceWatch();  // drops pending callbacks

  void add(const WatchedPipeline& pipeline);  // replaces a watched process of the same name
  // Ends the watch; call it once the last process of the pipeline has ended. Returns the total use, with the `cpu` of
  // its last second; an empty sample with its name if it was watched for too short a time.
  ResourceSample remove(const std::string& name);

  // CPU seconds of the watch so far.
  double cost() const { return cost_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    WatchedPipeline pipeline;
    ResourceSample sample;
    Clock::time_point sampled, next_check;
    bool reported = false;
  };
  void run();
  void sample_all(std::unique_lock<std::mutex>& lock, Clock::time_point now);
  void check_limit(Entry& entry, Clock::time_point now);
  std::map<std::string, GpuReading> read_gpus(std::unique_lock<std::mutex>& lock);
  void add_gpus(const std::map<std::string, GpuReading>& readings);
  Clock::time_point next_check() const;
  bool watches(const WatchedPipeline& pipeline);  // true while it watches this process

  const OnSamples on_samples_;
  const OnOverLimit on_over_limit_;
  OwnedTasks tasks_;
  std::mutex mutex_;  // guards all that follows, except gpus_
  std::condition_variable changed_;
  bool closed_ = false;
  ProcessTrees trees_;
  GpuUse gpus_;  // used by thread_ only
  std::map<std::string, Entry> entries_;
  Clock::time_point next_sample_ = Clock::now();
  std::atomic<double> cost_{0};
  std::thread thread_;
};

// --- ResourceLog: writes samples to files ---

// Writes samples to RUN/metrics.jsonl, and the last sample of each pipeline to RUN/resources.json for `convoy top`.
// metrics.jsonl gets a line per pipeline every second at first, and one at the pipeline's end. Later the interval is
// 1/60 of the pipeline's age, at most a minute, to limit the file's size. Threads: one. Failure: Error(io) if the files
// cannot be opened; a full disk then costs lines only.
class ResourceLog {
 public:
  explicit ResourceLog(const std::string& run_folder);
  ~ResourceLog();
  void write(const std::vector<ResourceSample>& samples);
  // Writes the last line of an attempt. The pipeline disappears from resources.json within a second.
  void end(const ResourceSample& last);

 private:
  struct Pipeline {
    double first = 0;  // time of its first sample
    double next = 0;   // time from which the next line is due
    Json last;         // its last sample
  };
  void put(const std::string& text) const;
  void write_live() const;

  std::string folder_;
  Descriptor file_;
  std::map<std::string, Pipeline> pipelines_;
};

}  // namespace convoy
