// Ranks of a strategy on a mesh: their hosts, processes and devices. Without LibTorch.
#pragma once
#include "core/config/job_plan.h"

namespace convoy {

// True if ranks run on GPUs: `device: cuda`, or `auto` if the topology has any. Throws ConfigError(device_missing) for
// `cuda` without a GPU.
bool on_gpus(const RunConfig& config, const Topology& topology);

// Plans a job with its ranks on `mesh`: one process per rank, or one process for all with backend `local`. Hosts follow
// the request; otherwise ranks fill the topology's hosts in contiguous runs. The launcher chooses cores. `device: auto`
// uses GPUs if every host has one per rank; otherwise it uses cores with a warning. `share_gpus`: ranks in excess of
// the GPUs share them round robin, each in a separate process; nccl refuses that.
Plan plan_on_mesh(const RunConfig& config, const Topology& topology, const PlanRequest& request, const Mesh& mesh,
                  bool share_gpus = false);
// Does the same on a mesh {data: ranks}.
Plan plan_replicas(const RunConfig& config, const Topology& topology, const PlanRequest& request, int ranks);
// Does the same with the configured number of ranks, or one per GPU, or one.
Plan plan_data_axis(const RunConfig& config, const Topology& topology, const PlanRequest& request);

}  // namespace convoy
