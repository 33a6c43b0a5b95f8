// Topologies of other machines (tests/topologies, written by make.py), and jobs for them.
#pragma once
#include <cstdlib>
#include <string>

#include "core/base/plan.h"
#include "launch/machine/topology.h"

namespace convoy {

constexpr int64_t mib = int64_t{1} << 20, gib = int64_t{1} << 30;

// ctest sets the folder of the sources; without ctest the program is started in it.
inline std::string topology_file(const std::string& name) {
  const char* source = std::getenv("CONVOY_SOURCE");
  return std::string(source == nullptr ? "." : source) + "/tests/topologies/" + name + ".xml";
}

inline Topology machine_named(const std::string& name) { return {{saved_host(topology_file(name))}}; }

// Each rank is a process with one device, which is not placed yet.
inline JobPlan job_of(int ranks, bool gpus = false) {
  JobPlan job;
  for (int rank = 0; rank < ranks; ++rank) {
    RankPlan plan;
    plan.rank = plan.process = rank;
    DevicePlan device;
    device.kind = gpus ? DevicePlan::Kind::gpu : DevicePlan::Kind::cores;
    device.gpu = gpus ? rank : -1;
    plan.devices = {device};
    job.ranks.push_back(plan);
    job.processes.push_back({0, {rank}});
  }
  return job;
}

}  // namespace convoy
