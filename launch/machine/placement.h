// Divides a host's cores between its ranks, and gives the reasons. A pure function of plan and topology.
//
// Ranks get whole cores while there are enough, then hardware threads. If ranks outnumber those too, all ranks share
// all of them, with one warning. A rank's cores come from the NUMA node of its GPU, else from one node, if that node
// has enough cores. even_share describes when shares become smaller for this.
//
// launch.bind decides how ranks are bound:
//   core     bound to its cores                    numa, socket  bound to all cores of its nodes or sockets
//   none     not bound                             list          bound to its item in launch.cores
//   keep     bound as the launcher bound it        convoy        like core, over all cores of the job on the host,
//                                                                and ignores the launcher's binding
#pragma once
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/config/job_plan.h"
#include "launch/machine/topology.h"

namespace convoy {

// --- The placement table, which a run prints, its summary stores and `convoy explain` shows. Pure functions. ---

// Placement of one rank, with the reason.
struct PlacedRank {
  int rank = 0;
  std::string host;
  std::string device;        // "GPU 1 GPU-5f2a91c4", "cores"
  std::vector<int> numa;     // NUMA nodes of its cores, ascending
  std::vector<int> sockets;  // sockets of its cores, ascending
  std::vector<int> cores;    // hardware threads that it is bound to; empty: not bound
  int threads = 1;
  std::string why;
};
CONVOY_JSON(PlacedRank, rank, host, device, numa, sockets, cores, threads, why)

struct PlacementResult {
  std::vector<std::string> warnings;
  bool shared = false;            // ranks, or a rank's devices, share cores: waiting threads must not spin
  std::vector<PlacedRank> table;  // by rank
};

// Fills RankPlan::cores and ::threads, cores of core devices that the plan left empty, and the UUIDs of GPUs. `allowed`
// gives for each rank the hardware threads to which its launcher bound it; empty: no limit. Ranks with equal sets
// divide them. Throws ConfigError if launch.cores_per_rank, launch.threads or launch.cores exceeds the available cores.
PlacementResult place(JobPlan& job, const Topology& topology, const LaunchConfig& launch,
                      const std::vector<std::vector<int>>& allowed = {});

// Null for other devices, and if the host lacks the GPU.
const Gpu* gpu_of(const DevicePlan& device, const Host& host);

// Resources of the hosts for the summary, also those that no rank uses: [{host, memory_bytes, nodes: [{socket, numa,
// threads: "0-7"}], gpus: [{index, numa}]}].
Json topology_json(const Topology& topology);

// One line per rank below a heading. With more than `most` ranks: one line per group of ranks with equal placement, at
// most `most`, and a line with the number of omitted ranks.
std::string placement_text(const std::vector<PlacedRank>& table, size_t most);

}  // namespace convoy
