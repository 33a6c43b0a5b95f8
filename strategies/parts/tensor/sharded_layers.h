// ShardedLayers: layers that the ranks of a tensor group share out (Shoeybi et al., "Megatron-LM", 2019).
//
// linear: `cut: column` gives each rank a share of the outputs (of each of `parts`), `cut: row` a share of the
// inputs, and anything else a whole copy. embedding: rows, in shares that may differ by one; whole where there are
// fewer rows than ranks. A linear layer tied to a cut embedding has its cut, and gathers its output unless it asked
// for `cut: column`. Losses and ranks over cut classes exchange a few numbers per position. Everything else, conv2d,
// batch_norm and what blocks make themselves included, every rank has whole and computes alike; of it, tensor rank 0
// counts and owns (PartRequest::counts). Which activations are cut: parts/tensor/passage.h. A block's own modules and batch
// norms stand outside its regions.
// Failure: Error(config) naming the layer and its sizes where the ranks do not divide a linear layer.
#pragma once
#include <functional>
#include <memory>

#include "core/communicator.h"
#include "strategies/parts/block_counts.h"
#include "strategies/parts/model_part.h"

namespace convoy {

struct TensorOptions {
  bool sequence_parallel = false;  // activations between row- and column-cut layers are shares of sequences
  PlannedCuts cuts = {};           // of the whole model, where a rank builds a part of it
};

// For PartRequest::layers. A group of one gets PlainLayers. The function is collective over the group.
std::function<std::shared_ptr<Layers>(std::shared_ptr<LayerStore>)> sharded_layers(CommunicatorPtr group,
                                                                                   const TensorOptions& options);

// `request` with the layers of the context's axis `tensor`, and counted on its rank 0 only.
PartRequest sharded_part(const Context& context, const TensorOptions& options, PartRequest request = {});

// Of a strategy that has tensor_options() (parts/tensor/tensor_group_entry.h).
TensorOptions tensor_options_of(const Options& strategy);

}  // namespace convoy
