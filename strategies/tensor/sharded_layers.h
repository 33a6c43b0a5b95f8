// ShardedLayers: layers that are sharded over the ranks of a tensor group (Shoeybi et al., "Megatron-LM", 2019).
//
// linear: `cut: column` shards the outputs (of each of `parts`), `cut: row` shards the inputs; other layers are whole.
// embedding: sharded by rows, in shards that differ by at most one row; whole if there are fewer rows than ranks. A
// linear layer tied to a sharded embedding has its sharding. It gathers its output unless it requests `cut: column`.
// Losses over sharded classes, and the ranking of a target among them, exchange a few numbers per position. Everything
// else, such as conv2d, batch_norm and foreign modules, is whole and equal on every rank. Tensor rank 0 counts and owns
// it (PartRequest::counts).
// Sharding of activations: sharding_state.h. Foreign modules and batch norm are outside regions.
// Failure: Error(config) names the layer and its sizes if the ranks do not divide a linear layer.
#pragma once
#include <string>

#include "core/communicator.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/common/model/model_part.h"
#include "strategies/plans/options/tensor_group.h"
#include "strategies/tensor/group_functions.h"
#include "strategies/tensor/sharding_state.h"

namespace convoy {

// LocalRowIndices: numbers in [0, whole) as indices in this rank's shard.
struct LocalRowIndices {
  at::Tensor index;    // within the shard; arbitrary where `foreign`
  at::Tensor foreign;  // bool: another rank's shard contains the number
};
// Throws Error(training) for a number outside [0, whole), checked on the CPU. `what` names the numbers in the message.
LocalRowIndices local_row_indices(const at::Tensor& numbers, const DimensionShard& shard, const std::string& what);

// Vocabulary-parallel loss, and rank of the target among the classes. Logits are not gathered: the group exchanges a
// few numbers per position. Shapes are those of core/layers.h. `shard`: sharding of the last dimension of `logits`.

// logits [.., B, …, classes of this rank], target [.., B, …] → [.., B, …], in float for 16-bit logits.
at::Tensor sharded_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const DimensionShard& shard,
                                 const CommunicatorPtr& group);
at::Tensor sharded_target_rank(const at::Tensor& logits, const at::Tensor& target, const DimensionShard& shard,
                               const CommunicatorPtr& group);

struct TensorOptions : TensorGroupOptions {
  PlannedShards cuts = {};  // shards of the whole model, if a rank builds a part of it
};

// Returns a value for PartRequest::layers; DefaultLayers for a group of one. The function is collective over the group.
LayersFactory sharded_layers(CommunicatorPtr group, const TensorOptions& options);

// Returns `request` with the layers of the context's axis `tensor`. Only rank 0 of that axis counts them.
PartRequest sharded_part(const Context& context, const TensorOptions& options, PartRequest request = {});

}  // namespace convoy
