// A host as planning sees it: this one, found by hwloc and NVML, or another one that hwloc has saved.
#pragma once
#include "core/options.h"
#include "core/topology.h"

namespace convoy {

struct TopologyRequest {
  bool gpus = false;   // look for GPUs: costs tens of milliseconds where there are any
  bool whole = false;  // what the job may use here beyond what a launcher bound this process to; Host::bound tells that
};
// Only what this process may use: its affinity mask (unless `whole`), cpuset and cgroup quota. Error(io) when hwloc fails.
Host this_host(const TopologyRequest& request);

// From the XML that `lstopo --of xml` writes, on this machine or on another; only what was allowed there. The name is the
// one in the file, else that of the file. GPUs are those of NVIDIA, in the order of their PCI addresses.
// Error(config) naming the file.
Host saved_host(const std::string& path);

std::string host_name();

// As a `convoy` tells its own host to the one that plans.
Json to_json(const Host& host);
Host host_from_json(const Json& json);

}  // namespace convoy
