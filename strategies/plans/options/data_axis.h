// Options of a step that several strategies have, and their checks. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

// Blocks with activation checkpointing.
struct Recompute {
  bool all = false;
  std::vector<std::string> names = {};  // names of blocks, if not all

  bool includes(const std::string& block) const;
};

// Typed values of a strategy's section. A key that the strategy lacks has the value here.
struct StepOptions {
  int64_t micro_batches = 1;
  SyncPolicy sync = {};
  Recompute recompute = {};
  double first_bytes = 0;           // size of the first bucket
  double cap_bytes = 0;             // size of the others; 0: bucket_cap decides
  bool overlap = true;              // send during the backward pass
  std::string buffers = "local";    // batch norm's buffers after an update: broadcast | mean | local
  bool synchronises_norms = false;  // batch norm uses the rows of all ranks of the data axis
};
StepOptions step_options(const Options& strategy);

// Throws ConfigError at the key for a malformed `recompute`, and for fp16 if the strategy has no loss scaler.
void check_memory_options(const RunConfig& config);

// Throws ConfigError at the key for more micro-batches than a global batch has rows.
void check_micro_batches(const RunConfig& config, int64_t data_degree);

// Returns the default of bucket_cap_mb: a quarter of the gradients, so that most of them overlap with the backward
// pass, between 1 and 25 MiB. Smaller messages cost latency; larger ones gain nothing.
double bucket_cap(double gradient_bytes);

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
