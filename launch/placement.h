// Divides a host's cores between the ranks placed on it. A pure function of plan and topology.
//
// Physical cores first: a rank gets whole cores, with their hyper-threads, as long as there are enough; then processing
// units; where ranks outnumber those too, all share all of them, with one warning.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"

namespace convoy {

struct PlacementResult {
  std::vector<std::string> warnings;
  bool shared = false;  // ranks share cores, or a rank's devices those of its own thread: waiting must be passive
};

// Fills RankPlan::cores, ::threads and the cores of its core devices where the plan left them empty. `allowed` gives per
// rank the processing units that its launcher bound it to, empty for no such limit: ranks with equal sets divide them.
// Throws ConfigError when launch.cores_per_rank asks for more than there is.
PlacementResult place(Job& job, const Topology& topology, const LaunchConfig& launch,
                      const std::vector<std::vector<int>>& allowed = {});

}  // namespace convoy
