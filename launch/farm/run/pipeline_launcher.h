// State of a farm's pipelines, and the interface that starts, watches and ends them: on this host, or through the
// agents of a launcher's ranks.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/files/files.h"
#include "launch/farm/monitor/resources.h"
#include "launch/farm/run/attempt_result.h"
#include "launch/farm/schedule/queue.h"

namespace convoy {

struct PipelineState {
  enum class Status { waiting, running, done, failed, stopped };

  Pipeline pipeline;
  ResourceRequest request;
  std::string folder;  // absolute
  Status status = Status::waiting;
  int starts = 0;        // total, including earlier farms in this folder
  int64_t failures = 0;  // consecutive failed attempts of this farm
  AttemptResult result;  // of the last attempt
  double seconds = 0;    // duration of all attempts of this farm
  // While it runs:
  Allocation allocation;
  double started = 0;  // unix seconds
  StopReason stop_reason = StopReason::none;
  std::string detail;        // of `stop_reason`, for people
  std::string last_message;  // printed by its `convoy`
};
const char* name_of(PipelineState::Status status);  // as in summary.json and the leaderboard

// An item of summary.json: {name, status, exit_code, attempts, cause, message, folder, metrics}. `summary`: of the
// pipeline's own folder.
Json to_json(const PipelineState& entry, const Json& summary);

struct LaunchSpec {
  int job = 0;  // the supervisor's number for it
  std::string name;
  std::string folder;  // its run folder, absolute; contains its configuration, pipeline.yaml
  std::vector<int> cores;
  std::vector<std::string> gpus;  // UUIDs
  bool hide_gpus = false;         // the host has GPUs and the pipeline gets none
  int64_t memory = 0;             // bytes; 0: no limit
  int64_t gpu_memory = 0;
  int nice = 0;
  std::vector<std::string> inject;  // faults, as typed
};
CONVOY_JSON(LaunchSpec, job, name, folder, cores, gpus, hide_gpus, memory, gpu_memory, nice, inject)
// Limit in bytes on the sum over its GPUs, with memory outside the allocators; above it the launcher kills it. 0: none.
int64_t watched_gpu_memory(const LaunchSpec& spec);

struct LauncherEvents {
  std::function<void(int job, pid_t pid)> on_started;
  std::function<void(int job, const std::string& line)> on_line;
  std::function<void(int job, const ProcessEnd& end, const ResourceSample& used)> on_end;
  std::function<void(const std::vector<ResourceSample>&)> on_samples;
  std::function<void(int job, const std::string& what)> on_over_limit;                 // after the launcher killed it
  std::function<void(int job, int exit_code, const std::string& message)> on_refused;  // it could not be started
};

class PipelineLauncher {
 public:
  virtual ~PipelineLauncher() = default;  // kills running pipelines
  // `slot`: index into Inventory::slots of the first allocated slot. Reports the result by on_started or on_refused,
  // perhaps before it returns.
  virtual void start(int slot, const LaunchSpec& spec) = 0;
  virtual void ask_to_stop(int job) = 0;  // it writes a checkpoint after its step and ends with 143
  virtual void kill(int job) = 0;         // with all its descendants
};

}  // namespace convoy
