// Hosts, devices, ranks and their grid as plain data; core/config/job_plan.h has the plan of a job. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

// The mesh of ranks: named axes. The product of their degrees is the number of ranks. Row-major: the last axis varies
// fastest.
// Plain data; copyable; thread-safe while no thread modifies it.

struct Axis {
  std::string name;  // "data", "pipeline", "tensor"
  int degree = 1;
};

class Mesh {
 public:
  Mesh() = default;                       // one rank, no axis
  explicit Mesh(std::vector<Axis> axes);  // throws Error(config) for a degree below 1 or a duplicate name

  int size() const;                                         // product of the degrees
  int degree(const std::string& axis) const;                // 1 for an axis that does not exist
  int coordinate(int rank, const std::string& axis) const;  // 0 for an axis that does not exist
  // Returns the ranks that differ from `rank` only along `axis`, in order of their coordinate. Returns {rank} for an
  // axis that does not exist.
  std::vector<int> group(int rank, const std::string& axis) const;
  const std::vector<Axis>& axes() const { return axes_; }

 private:
  std::vector<Axis> axes_;
};

// Hosts as plain data, from hwloc and NVML, or from files in tests. Planning is a pure function of them.

struct Core {
  int id = 0;    // number of its first hardware thread in the operating system
  int numa = 0;  // NUMA node
  int socket = 0;
  std::vector<int> siblings;  // hardware threads of this core, `id` first
};

struct Gpu {
  int index = 0;
  std::string uuid;    // "": unknown
  std::string pci;     // "0000:3b:00.0"
  int numa = 0;        // NUMA node of the nearest cores; -1: unknown, or several are equally near
  int64_t memory = 0;  // bytes
  int socket = -1;     // socket of these cores; -1: unknown
};

struct Host {
  std::string name;
  std::vector<Core> cores;  // only cores that this job may use (cpuset, cgroup quota)
  std::vector<Gpu> gpus;
  int64_t memory = 0;  // bytes that this job may use
  // Hardware threads to which a launcher bound this rank; empty: all of `cores`.
  std::vector<int> bound = {};
};

struct Topology {
  std::vector<Host> hosts;  // at least one
};

// Device of a rank: a GPU, or a set of cores.
struct DevicePlan {
  enum class Kind { cores, gpu } kind = Kind::cores;
  int gpu = -1;            // index into Host::gpus if kind is gpu
  std::vector<int> cores;  // hardware threads that it uses (Core::id)
  std::string uuid = "";   // uuid of the GPU, set by placement; "": unknown
};

// Rank: a thread with its devices and cores.
struct RankPlan {
  int rank = 0;
  int host = 0;                     // index into Topology::hosts
  int process = 0;                  // index into JobPlan::processes
  std::vector<DevicePlan> devices;  // at least one
  std::vector<int> cores;           // cores of all devices and of its helper threads; empty: not bound
  int threads = 1;                  // intra-op threads
};

struct ProcessPlan {
  int host = 0;
  std::vector<int> ranks;  // ranks that run as threads of this process, ascending
};

// Inputs of planning besides configuration and topology.
struct PlanRequest {
  int ranks = 0;                // from --ranks, launch.ranks or the outer launcher; 0: the strategy chooses
  std::vector<int> rank_hosts;  // host of each rank, if an outer launcher decided it; else empty
};

}  // namespace convoy
