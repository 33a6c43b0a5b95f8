// A host for planning: this one, found by hwloc and NVML, or one that hwloc saved in a file.
#pragma once
#include <string>

#include "core/base/options.h"
#include "core/base/plan.h"

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

std::string host_name();

// Host as an agent sends it to the supervisor.
CONVOY_JSON(Core, id, numa, socket, siblings)
CONVOY_JSON(Gpu, index, uuid, pci, numa, memory, socket)
CONVOY_JSON(Host, name, memory, cores, gpus, bound)

}  // namespace convoy
