// A machine to plan for.
#pragma once
#include "core/config/job_plan.h"

namespace convoy {

inline Topology one_host(int cores, int gpus = 0, int64_t gpu_memory = 0) {
  Topology topology;
  topology.hosts.push_back({"here", {}, {}, 0});
  for (int core = 0; core < cores; ++core) topology.hosts[0].cores.push_back({core, 0, 0, {core}});
  for (int gpu = 0; gpu < gpus; ++gpu) topology.hosts[0].gpus.push_back({gpu, "", "", 0, gpu_memory});
  return topology;
}

}  // namespace convoy
