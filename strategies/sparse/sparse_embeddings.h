// Layers of sparse embeddings (sparse_embedding.h).
#pragma once
#include <memory>

#include "core/context.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/sparse/exchange/row_index.h"

namespace convoy {

class SharedRows;

// Returns a value for PartRequest::layers: layers with sparse embeddings that are sharded over the ranks of the axis
// `data` (SparseRowBlocks), and otherwise DefaultLayers. Null if the model does not request it, or with one rank.
LayersFactory sharded_row_layers(const Context& context);

// Makes the layer of an embedding and turns its weight into a sparse embedding. `blocks`: distribution over ranks
// (null: not sharded); `host`: shared memory (null: not shared).
Layer sparse_embedding_layer(const ParameterPtr& weight, const LayerStore& store,
                             std::shared_ptr<const SparseRowBlocks> blocks = nullptr,
                             std::shared_ptr<SharedRows> host = nullptr);

}  // namespace convoy
