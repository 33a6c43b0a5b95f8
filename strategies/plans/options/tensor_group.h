// Tensor parallelism without LibTorch: options, checks, and the cost of a step.
#pragma once
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/data_axis.h"

namespace convoy {

std::vector<Option> tensor_options();

// Typed values of tensor_options().
struct TensorGroupOptions {
  bool sequence_parallel = false;  // activations between row- and column-parallel layers are sharded along the sequence
};
TensorGroupOptions tensor_group_options(const Options& strategy);

// Throws ConfigError at model.heads or model.kv_heads if the ranks do not divide the model's attention heads.
// check_shards checks the sizes that only layers know.
void check_tensor_degree(const RunConfig& config, int degree);

// Returns why strategy.sequence_parallel refuses a block that returns a tensor of `shape` for sequences of `length`
// positions.
std::string flat_sequences_text(const std::string& block, const std::string& shape, int64_t length, int64_t ranks);
// Throws ConfigError for a layer that the ranks of the axis tensor do not divide: at the model's option with that size
// if exactly one has it, otherwise at `model`. Throws at strategy.sequence_parallel for flat_sequences.
void check_shards(const JobPlan& job, const ModelDescription& description);
// Returns warnings about requested sharding without effect for these blocks. Each starts with `key`, the key that
// requests the tensor group.
std::vector<std::string> tensor_notes(const JobPlan& job, const ModelDescription& description, const std::string& key);
// Returns the cost of a rank without the exchanges of the data axis.
// N: ranks along the axis tensor. P: trained elements of e bytes; C of them are sharded. k: moments. R: rows per rank
// and step. I and O: bytes per row of inputs of column-parallel layers (that need gradients), and of outputs of
// row-parallel layers and embeddings.
//   parameters: (P − C + C/N)·e, the same for gradients, k times that for moments
//   sent per step along the axis tensor: 2(N−1)/N · R·(I + O);
//         with sequence parallelism (N−1)/N · R·(3·I + 2·O + activations where sequence shards begin and end)
// Checkpointed blocks send the messages of their forward twice. Not counted: a few numbers per position for a loss over
// sharded classes, and a few per update for the norm.
RankCost tensor_group_cost(const JobPlan& job, const ModelDescription& description);
// Returns the model as one rank of the axis tensor has it: fewer parameters, and fewer bytes kept for backward.
ModelDescription shard_description(const JobPlan& job, const ModelDescription& description);
}  // namespace convoy
