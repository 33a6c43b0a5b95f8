// What strategies that keep a whole replica per rank share without LibTorch: where ranks go, and what a step costs.
#pragma once
#include "strategies/catalogue.h"

namespace convoy {

// Whether ranks of this configuration run on GPUs: `device: cuda`, or `auto` where the topology has any.
// Throws ConfigError(device_missing) for `cuda` where there is none.
bool on_gpus(const RunConfig& config, const Topology& topology);

// Throws ConfigError at the key for a `recompute` of another form, and for fp16 where the strategy has no loss scaler.
void check_memory_options(const RunConfig& config);

// Throws ConfigError at the key for more micro-batches than a global batch has rows.
void check_micro_batches(const RunConfig& config, int64_t data_degree);

// A job whose ranks stand on `mesh`, one process a rank, or for backend `local` one process of all. Hosts as the request
// says, else in contiguous runs over the topology's hosts. Cores are left to the launcher's placement. `device: auto` takes
// GPUs where every host has as many as ranks, else cores, which a warning tells.
// `share_gpus`: more ranks than GPUs go round them, each a process of its own; not over nccl, which refuses that.
Plan plan_on_mesh(const RunConfig& config, const Topology& topology, const PlanRequest& request, const Mesh& mesh,
                  bool share_gpus = false);
// The same on a mesh {data: ranks}.
Plan plan_replicas(const RunConfig& config, const Topology& topology, const PlanRequest& request, int ranks);
// The same with as many ranks as asked for, else one per GPU, else one.
Plan plan_data_axis(const RunConfig& config, const Topology& topology, const PlanRequest& request);

// One bucket of gradients as ddp fills them: what `messages_per_step` counts.
struct BucketSizes {
  double first_bytes = 0;
  double other_bytes = 0;
};
// first_bucket_mb and bucket_cap_mb for so many bytes of gradients.
BucketSizes bucket_sizes(const Options& strategy, double gradient_bytes);
// Where bucket_cap_mb is not given: a quarter of the gradients, so that most of them are sent while backward goes on, yet
// between 1 and 25 MiB: smaller messages cost latency, and larger ones gain nothing.
double bucket_cap(double gradient_bytes);

double replicated_bytes(const Description& description);  // all parameters
// Per rank of a job whose ranks all hold everything. Each step sends one ring all-reduce of the gradients, divided by
// sync.every: 2·(N−1)/N times their bytes; under another policy what sync_entry.h says, and of row tables, where the strategy
// has them (`row_tables`), what row_tables_entry.h says.
std::vector<RankCost> replica_costs(const Job& job, const Description& description, bool row_tables = false);

// Of a resolved configuration: moments that its optimizer keeps of each parameter, rows that each of `ranks` along the data
// axis reads in a step (0 where that is not known), and what such a rank keeps of one micro-batch for backward, with
// `recompute` as configured.
int moments_of(const Json& config);
double rows_per_rank(const Json& config, int ranks);
struct KeptBytes {
  double kept = 0;     // from a forward to its backward
  double largest = 0;  // beside it, the most while a backward goes on: its own tensors, and those of a block run again
};
// Of so many rows through blocks [begin, end), by `recompute` of the resolved section `strategy`.
KeptBytes kept_bytes(const Json& strategy, const Description& description, int64_t begin, int64_t end, double rows);
// Rows of slice number `slice` of as many: they differ by one at most, the larger ones first.
double rows_of_slice(double rows, int slice, int slices);
// Whether `recompute` of that section has the block run again.
bool recomputed(const Json& strategy, const std::string& block);
double activation_bytes(const Json& config, const Description& description, int ranks);

// What a data axis of so many ranks sends for batch norm, by the options `batch_norm` and `buffers`: exchanges of layers in
// forward and backward, and running figures after an update, which its rank 0 sends where they are broadcast.
void add_buffer_exchanges(const Json& config, const Description& description, int ranks, int data_rank, RankCost& cost);
// Of a rank that does all of its rows' passes itself, `degree` being that of the data axis, and updates everything.
RankWork whole_work(const Json& config, int degree);
// The share of so many messages that goes on beside backward, by the option `overlap`.
double beside_backward(const Json& config, double messages);

// Throws ConfigError at strategy.recompute for a name that is none of the model's blocks.
void check_recomputed_names(const std::vector<std::string>& named, const std::vector<std::string>& blocks);

// Options that every strategy with a data axis takes.
Option sync_option();
Option micro_batches_option();
// recompute, loss_scale.
std::vector<Option> memory_options();
// buffers, batch_norm.
std::vector<Option> buffer_options();
// Those of strategies whose data axis replicates: buckets, overlap, and buffer_options().
std::vector<Option> replicated_data_options();

}  // namespace convoy
