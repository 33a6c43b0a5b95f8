// Plan: the jobs to start, as ranks grouped into processes. A strategy's `plan` computes it from configuration and
// topology, as a pure function. So tests can plan for machines that do not exist. Without LibTorch.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/base/plan.h"
#include "core/config/run_config.h"

namespace convoy {

// JobPlan: its processes start and end together.
struct JobPlan {
  std::string name;
  std::vector<RankPlan> ranks;
  std::vector<ProcessPlan> processes;
  Mesh mesh;            // mesh of `ranks`
  std::string backend;  // resolved: local, gloo, mpi, nccl
  RunConfig config;
};

struct Plan {
  std::vector<JobPlan> jobs;
  std::vector<std::string> warnings;
};

// Returns the UUIDs of the GPUs that a process may see, each once, in the order of its ranks' devices. Returns none if
// the process has no GPU or a UUID is unknown; then the process sees all GPUs of the host.
std::vector<std::string> visible_gpus(const JobPlan& job, int process);
// Returns the number of the GPU within a process that sees only `visible`.
int gpu_index_in(const std::vector<std::string>& visible, const DevicePlan& device);

// --- GPU memory limit of a farm's pipeline (`gpu_memory`) ---
//
// LibTorch's allocator enforces the limit, so that only the pipeline that exceeds it runs out of memory.

// The farm sets this variable for the pipeline's `convoy`: bytes on each of its GPUs.
inline constexpr char gpu_memory_variable[] = "CONVOY_GPU_MEMORY";

// The limit in the environment; 0: none. Throws Error(command_line) for a value that is not a positive number of bytes.
int64_t gpu_memory_limit(const std::map<std::string, std::string>& variables);

// Returns the limit of one process: processes of the job that share a GPU get equal parts of `limit`. 0: no limit.
int64_t limit_of_process(const JobPlan& job, int process, int64_t limit);

// Converts the job to the form that rank processes receive.
Json to_json(const JobPlan& job);
JobPlan job_from_json(const Json& json);

}  // namespace convoy
