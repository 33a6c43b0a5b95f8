// Options of strategies with a data axis, and their checks before a start. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

// Throws ConfigError at the key for a malformed `recompute`, for a block that it names twice, and for fp16 if the
// strategy has no loss scaler.
void check_memory_options(const RunConfig& config);

// Typed values of `mesh` and `order`, of a strategy with several axes.
struct MeshOptions {
  int data = 1, pipeline = 1, tensor = 1;  // degrees
  bool sharded = false;                    // data has how: fsdp; otherwise every rank of the axis has a replica
  std::vector<std::string> order = {};     // names of the axes, outermost first

  int of(const std::string& axis) const { return axis == "data" ? data : axis == "pipeline" ? pipeline : tensor; }
  int64_t product() const { return int64_t(data) * pipeline * tensor; }  // each at most 2²⁰
};
// Throws ConfigError at mesh.data, unless it is a number or {degree, how}.
MeshOptions mesh_options(const Options& strategy);

// Throws ConfigError at the key for more micro-batches than a global batch has rows.
void check_micro_batches(const RunConfig& config, int64_t data_degree);

// Returns the section `sync` of strategies with replicas.
Option replica_sync_option();

// Refuses a section `sync` that has no effect or that this run cannot follow. `copies`: the ranks of the data axis have
// whole replicas. Throws ConfigError at the key. Returns a line for each key that --set left without effect.
std::vector<std::string> check_sync(const RunConfig& config, bool copies);

// StrategyEntry::state_of_lost_rank, for replicas and for sharded state.
std::string state_of_lost_replica(const JobPlan& job);
std::string state_of_lost_shard(const JobPlan& job);

// Checks a model with `rows: true` against this configuration. `supported`: the strategy supports sparse embeddings.
// Throws ConfigError at the key that prevents them.
void check_sparse_embeddings(const RunConfig& config, bool supported);
// Returns warnings about tables that stay dense although the model requests sparse ones.
std::vector<std::string> sparse_warnings(const RunConfig& config);

// Joins lists of options.
std::vector<Option> joined(const std::vector<std::vector<Option>>& lists);
// Returns the options of every strategy with a data axis.
Option sync_option();
// `how`: what they do, for the help text.
Option micro_batches_option(const std::string& how =
                                "run one after another and make one update; more of them need less memory for "
                                "activations; the gradients are the same",
                            int64_t fallback = 1);
// Returns the options recompute, loss_scale.
std::vector<Option> memory_options();
// Returns the options buffers, batch_norm.
std::vector<Option> buffer_options();
// Returns the option overlap. `what`: what overlapping does.
Option overlap_option(const std::string& what);
// Returns the options of strategies with a replicated data axis: buckets, overlap, and buffer_options().
std::vector<Option> replicated_data_options();

}  // namespace convoy
