// Strategies with a replica per rank, without LibTorch: placement of ranks, and the cost of a step.
#pragma once
#include "strategies/plans/catalogue.h"
#include "strategies/plans/schedule.h"

namespace convoy {

// True if ranks run on GPUs: `device: cuda`, or `auto` if the topology has any. Throws ConfigError(device_missing) for
// `cuda` without a GPU.
bool on_gpus(const RunConfig& config, const Topology& topology);

// Throws ConfigError at the key for a malformed `recompute`, and for fp16 if the strategy has no loss scaler.
void check_memory_options(const RunConfig& config);

// Throws ConfigError at the key for more micro-batches than a global batch has rows.
void check_micro_batches(const RunConfig& config, int64_t data_degree);

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

// Sizes of the gradient buckets of ddp. `messages_per_step` counts them.
struct BucketSizes {
  double first_bytes = 0;
  double other_bytes = 0;
};
// Returns the sizes from first_bucket_mb and bucket_cap_mb for `gradient_bytes` of gradients.
BucketSizes bucket_sizes(const Options& strategy, double gradient_bytes);
// Returns the default of bucket_cap_mb: a quarter of the gradients, so that most of them overlap with the backward
// pass, between 1 and 25 MiB. Smaller messages cost latency; larger ones gain nothing.
double bucket_cap(double gradient_bytes);

double parameters_of(const ModelDescription& description);     // elements
double replicated_bytes(const ModelDescription& description);  // all parameters
double buffer_bytes(const ModelDescription& description);      // all buffers
// Returns the cost per rank if every rank has everything. Each step sends one ring all-reduce of the gradients, divided
// by sync.every: 2·(N−1)/N times their bytes. Other sync policies follow options/sync.h. If the strategy supports
// sparse embeddings (`sparse_embeddings`), they follow options/sparse_embeddings.h.
std::vector<RankCost> replica_costs(const JobPlan& job, const ModelDescription& description,
                                    bool sparse_embeddings = false);

// Values of a resolved configuration. moments_of: moments that the optimizer keeps per parameter. rows_per_rank: rows
// that each of `ranks` along the data axis reads in a step; 0 if unknown.
int moments_of(const Json& config);
double rows_per_rank(const Json& config, int ranks);
// Returns the activation bytes of `rows` rows through blocks [begin, end), with `recompute` of the resolved section
// `strategy`.
KeptBytes kept_bytes(const Json& strategy, const ModelDescription& description, int64_t begin, int64_t end,
                     double rows);
// Returns the rows of micro-batch `slice` of `slices`: sizes differ by at most one, larger ones first.
double rows_of_slice(double rows, int slice, int slices);
// True if `recompute` of that section includes the block.
bool recomputed(const Json& strategy, const std::string& block);
double activation_bytes(const Json& config, const ModelDescription& description, int ranks);

// Adds the cost of batch norm on a data axis of `ranks` ranks, by the options `batch_norm` and `buffers`: exchanges of
// layers in forward and backward, and buffers after an update (rank 0 of the axis sends a broadcast).
void add_buffer_exchanges(const Json& config, const ModelDescription& description, int ranks, int data_rank,
                          RankCost& cost);
// Returns the work of a rank that runs all passes of its rows and updates everything. `degree`: size of the data axis.
RankWork whole_work(const Json& config, int degree);
// Returns the share of `messages` messages that overlaps with the backward pass, by the option `overlap`.
double during_backward(const Json& config, double messages);

// Throws ConfigError at strategy.recompute for a name that is not a block of the model.
void check_recomputed_names(const std::vector<std::string>& named, const std::vector<std::string>& blocks);

// Joins lists of options.
std::vector<Option> joined(const std::vector<std::vector<Option>>& lists);
// Returns the options of every strategy with a data axis.
Option sync_option();
Option micro_batches_option();
// Returns the options recompute, loss_scale.
std::vector<Option> memory_options();
// Returns the options buffers, batch_norm.
std::vector<Option> buffer_options();
// Returns the options of strategies with a replicated data axis: buckets, overlap, and buffer_options().
std::vector<Option> replicated_data_options();

}  // namespace convoy
