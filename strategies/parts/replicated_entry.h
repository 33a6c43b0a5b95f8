// What strategies that keep a whole replica per rank share without LibTorch: where ranks go, and what a step costs.
#pragma once
#include "strategies/catalogue.h"

namespace convoy {

// Whether ranks of this configuration run on GPUs: `device: cuda`, or `auto` where the topology has any.
// Throws ConfigError(device_missing) for `cuda` where there is none.
bool on_gpus(const RunConfig& config, const Topology& topology);

// Throws ConfigError for a precision that no strategy of this build can train in.
void check_precision(const RunConfig& config);

// Throws ConfigError at the key for more micro-batches than a global batch has rows.
void check_micro_batches(const RunConfig& config, int64_t data_degree);

// A job whose ranks stand on `mesh`, one process a rank, or for backend `local` one process of all. Hosts as the request
// says, else in contiguous runs over the topology's hosts. Cores are left to the launcher's placement.
Plan plan_on_mesh(const RunConfig& config, const Topology& topology, const PlanRequest& request, const Mesh& mesh);
// The same on a mesh {data: ranks}.
Plan plan_replicas(const RunConfig& config, const Topology& topology, const PlanRequest& request, int ranks);

// One bucket of gradients as ddp fills them: what `messages_per_step` counts.
struct BucketSizes {
  double first_bytes = 0;
  double other_bytes = 0;
};

// Per rank of a job whose ranks all hold everything. Each step sends one ring all-reduce of the gradients, divided by
// `every`: 2·(N−1)/N times their bytes.
std::vector<RankCost> replica_costs(const Job& job, const Description& description, const BucketSizes& buckets,
                                    int64_t every);

// Moments that the optimizer of a resolved configuration keeps of each parameter.
int moments_of(const Json& config);
// Rows of a rank's share of a global batch, where `ranks` share it.
double rows_of(const Json& config, int ranks);

// Options that every strategy with a data axis takes.
Option sync_option();
Option micro_batches_option();
// Those of strategies whose data axis replicates: buckets, overlap, buffers.
std::vector<Option> replicated_data_options();

}  // namespace convoy
