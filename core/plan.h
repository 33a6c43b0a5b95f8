// What the launcher is to start: jobs of ranks grouped into processes. Made by a strategy's `plan`, a pure function of
// configuration and topology, so that it can be tested for machines that are not here. Without LibTorch.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/mesh.h"
#include "core/options.h"
#include "core/topology.h"

namespace convoy {

// A device of a rank: a GPU, or a set of cores.
struct DevicePlan {
  enum class Kind { cores, gpu } kind = Kind::cores;
  int gpu = -1;            // Host::gpus index when kind is gpu
  std::vector<int> cores;  // processing units (Core::id) it runs on
  std::string uuid = "";   // of the GPU, filled by the launcher's placement; "" where it is not known
};

// A rank is a thread with its devices and cores.
struct RankPlan {
  int rank = 0;
  int host = 0;                     // index into Topology::hosts
  int process = 0;                  // index into Job::processes
  std::vector<DevicePlan> devices;  // at least one
  std::vector<int> cores;           // union over devices plus those for its helper threads; empty: not bound
  int threads = 1;                  // intra-op threads
};

struct ProcessPlan {
  int host = 0;
  std::vector<int> ranks;  // ranks that are threads of this process, ascending
};

// A gang: all its processes start together and end together.
struct Job {
  std::string name;
  std::vector<RankPlan> ranks;
  std::vector<ProcessPlan> processes;
  Mesh mesh;            // over `ranks`
  std::string backend;  // resolved: local, gloo, mpi, nccl
  Json config;          // resolved configuration of this job (RunConfig::resolved form)
};

struct Farm;  // core/farm.h

struct Plan {
  std::vector<Job> jobs;
  std::vector<std::string> warnings;
  std::shared_ptr<const Farm> farm = nullptr;  // runs to be queued instead of `jobs`, which is empty then
};

// What planning is asked for beside configuration and topology.
struct PlanRequest {
  int ranks = 0;  // asked for by --ranks, launch.ranks or the launcher we are under; 0: the strategy chooses
  std::vector<int> rank_hosts;  // host of each rank where a launcher has already decided it, else empty
};

// UUIDs of the GPUs of a process, each once, in the order of its ranks' devices: what the process is shown. Empty where it
// has none, or where one's UUID is not known: then it sees all that the host has.
std::vector<std::string> shown_gpus(const Job& job, int process);
// The GPU's number within the process, under what shown_gpus shows it.
int gpu_within(const std::vector<std::string>& shown, const DevicePlan& device);

// As it travels to the rank processes.
Json to_json(const Job& job);
Job job_from_json(const Json& json);

}  // namespace convoy
