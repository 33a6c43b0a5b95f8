// Options of strategies with a data axis, and their checks. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// Throws ConfigError at the key for a malformed `recompute`, and for fp16 if the strategy has no loss scaler.
void check_memory_options(const RunConfig& config);

// Throws ConfigError at the key for more micro-batches than a global batch has rows.
void check_micro_batches(const RunConfig& config, int64_t data_degree);

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

// True if `recompute` of that section includes the block.
bool recomputed(const Json& strategy, const std::string& block);
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
