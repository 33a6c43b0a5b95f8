// Resource requests of pipelines, and checks of a farm's pipelines on a cluster. Pure functions, except that the checks
// look for plugins, data files and checkpoints.
#pragma once
#include <string>
#include <vector>

#include "core/base/plan.h"
#include "core/files/farm.h"
#include "launch/farm/schedule/queue.h"

namespace convoy {

// The hosts of a farm, and the slots, GPUs and memory that it may use of them.
struct Cluster {
  std::vector<Host> hosts;
  Inventory inventory;
};
// Without a launcher: each physical core is a slot.
Cluster cluster_of(const Host& host);
// Under a launcher: agent i is slot i. `agents`: each agent's host, with the launcher's binding (Host::bound). Agents
// that may use the same cores of a host divide them.
Cluster cluster_of(const std::vector<Host>& agents);

// `pipeline.config` may be null; then only the queue options count.
ResourceRequest request_of(const Pipeline& pipeline, const Cluster& cluster, int max_parallel);
// Hardware threads of an allocation: those that the request lists, else all of its slots.
std::vector<int> hardware_threads_of(const Allocation& allocation, const ResourceRequest& request,
                                     const Inventory& inventory);

// Returns all mistakes of the pipelines on this cluster: missing devices; plans that the strategy refuses; cores and
// GPUs that two pipelines list without `share`; shares or memory limits that together exceed a device or host.
// Completes configurations that load plugins. `rank_program`: path of convoy-rank. A null configuration had mistakes;
// then only the pipeline's queue options are checked. The first `known` pipelines were checked before; they only count
// as users of cores, GPUs and memory.
std::vector<ConfigError> check_requests(Farm& farm, const Cluster& cluster, const std::string& rank_program,
                                        size_t known = 0);
// The checks that need no cluster: plugins, data files, and devices that two pipelines list without `share`.
std::vector<ConfigError> check_anywhere(Farm& farm, const std::string& rank_program);

}  // namespace convoy
