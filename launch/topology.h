// This host as planning sees it, found by hwloc and NVML.
#pragma once
#include "core/options.h"
#include "core/topology.h"

namespace convoy {

struct TopologyRequest {
  bool gpus = false;  // look for GPUs: costs tens of milliseconds where there are any
};
// Only what this process may use: its affinity mask, cpuset and cgroup quota. Error(io) when hwloc fails.
Host this_host(const TopologyRequest& request);

std::string host_name();

// As a `convoy` tells its own host to the one that plans.
Json to_json(const Host& host);
Host host_from_json(const Json& json);

}  // namespace convoy
