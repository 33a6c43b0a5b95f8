// Machines as plain data: the launcher fills it from hwloc and NVML, tests from files. Planning is a pure function of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

struct Core {
  int id = 0;    // as the operating system numbers the (first) processing unit of this physical core
  int numa = 0;  // NUMA node
  int socket = 0;
  std::vector<int> siblings;  // processing units of the same physical core, `id` first
};

struct Gpu {
  int index = 0;
  std::string uuid;    // "" where it is not known
  std::string pci;     // "0000:3b:00.0"
  int numa = 0;        // NUMA node of the cores it is attached to; -1: not known, or several are as near
  int64_t memory = 0;  // bytes
  int socket = -1;     // of these cores; -1: not known
};

struct Host {
  std::string name;
  std::vector<Core> cores;  // only those this job may use (cpuset, cgroup quota)
  std::vector<Gpu> gpus;
  int64_t memory = 0;  // bytes this job may use
  // Processing units that a launcher has bound the asking rank to, where these are not all of `cores`; empty: no such limit.
  std::vector<int> bound = {};
};

struct Topology {
  std::vector<Host> hosts;  // at least one
};

}  // namespace convoy
