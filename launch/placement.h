// Divides a host's cores between the ranks placed on it, and tells why. A pure function of plan and topology.
//
// Physical cores first: a rank gets whole cores, with their hyper-threads, as long as there are enough; then processing
// units; where ranks outnumber those too, all share all of them, with one warning. A rank's cores come from the NUMA node of
// its GPU, else from one node, where that has enough (core_pool.h says when shares are made smaller for it).
//
// launch.bind says what is done with them:
//   core     bound to its cores                         numa, socket  bound to all cores of the nodes or sockets these are in
//   none     not bound                                  list          bound to what launch.cores gives it
//   keep     bound as its launcher bound it             convoy        as core, over all cores of the job on the host,
//                                                                     whatever the launcher bound its ranks to
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"
#include "launch/placement_table.h"

namespace convoy {

struct PlacementResult {
  std::vector<std::string> warnings;
  bool shared = false;  // ranks share cores, or a rank's devices those of its own thread: waiting must be passive
  std::vector<PlacedRank> table;  // by rank
};

// Fills RankPlan::cores, ::threads, the cores of its core devices where the plan left them empty, and the UUIDs of its GPUs.
// `allowed` gives per rank the processing units that its launcher bound it to, empty for no such limit: ranks with equal
// sets divide them. Throws ConfigError when launch.cores_per_rank, launch.threads or launch.cores asks for more than there is.
PlacementResult place(Job& job, const Topology& topology, const LaunchConfig& launch,
                      const std::vector<std::vector<int>>& allowed = {});

}  // namespace convoy
