// A host for planning: this one, found by hwloc and NVML, or one that hwloc saved in a file.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/plan.h"
#include "core/files/limits.h"

namespace convoy {

struct TopologyRequest {
  bool gpus = false;   // look for GPUs; takes tens of milliseconds on a host with GPUs
  bool whole = false;  // include cores that the job may use but this process is not bound to; sets Host::bound
};
// Resources that this process may use: affinity mask (unless `whole`), cpuset, cgroup quota. Error(io) if hwloc fails.
Host this_host(const TopologyRequest& request);

// Reads the XML of `lstopo --of xml`, without resources that were not allowed there. The host name comes from the file,
// else from the file's name. GPUs are NVIDIA's, in the order of PCI addresses. Error(config) names the file.
Host saved_host(const std::string& path);

// Host as an agent sends it to the supervisor.
CONVOY_JSON(Core, id, numa, socket, siblings)
CONVOY_JSON(Gpu, index, uuid, pci, numa, memory, socket)
CONVOY_JSON(Host, name, memory, cores, gpus, bound)

// --- Free cores of a host for ranks, near to each other and to the rank's GPU. Pure data ---

// Preferred location of a rank's cores; -1: any.
struct Affinity {
  int numa = -1;
  int socket = -1;
};
inline bool prefers_location(const Affinity& near) { return near.numa >= 0 || near.socket >= 0; }

// Cores restricted to these hardware threads; empty: no restriction.
std::vector<Core> restricted(const std::vector<Core>& cores, const std::vector<int>& threads);
// All hardware threads, ascending.
std::vector<int> hardware_threads_of(const std::vector<Core>& cores);
// One core per hardware thread.
std::vector<Core> split_hardware_threads(const std::vector<Core>& cores);
// Numbers of the cores' NUMA nodes (`location`: &Core::numa) or sockets (&Core::socket), each once, ascending.
std::vector<int> distinct(const std::vector<Core>& cores, int Core::*location);
// Cores grouped by NUMA node or socket, in ascending order.
std::vector<std::vector<Core>> grouped(const std::vector<Core>& cores, int Core::*location);

class CorePool {
 public:
  CorePool() = default;
  // Orders the cores by socket, NUMA node and number.
  explicit CorePool(std::vector<Core> cores);

  size_t size() const { return free_.size(); }
  // Takes cores of one NUMA node if any has enough left, else of one socket, else of any. Among several it takes the
  // nearest, then the first. Needs count ≤ size().
  std::vector<Core> take(size_t count, const Affinity& near);

 private:
  std::vector<Core> free_;
};

// Number of cores for each rank if all ranks get equally many; 0 if there are more ranks than cores.
//
// The share is smaller if a rank would otherwise leave the NUMA node or socket of its GPU. It is also smaller, down to
// three quarters, if all ranks then fit into single NUMA nodes: more cores gain less than memory of another node costs.
size_t even_share(const std::vector<Core>& cores, const std::vector<Affinity>& ranks);

}  // namespace convoy
