// Functions for all sparse embeddings of a rank (sparse_embedding.h).
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/layers.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/layers/parameter.h"
#include "strategies/common/model/model_part.h"
#include "strategies/sparse/exchange/row_index.h"

namespace convoy {

// SparseRule: decides which embeddings of a model a strategy keeps as sparse embeddings.
class SparseRule {
 public:
  // `ranks`: of the data axis. `warns`: warn about a dense table that is large enough to be sparse.
  SparseRule(const RunConfig& config, int ranks, bool warns = false) : config_(config), ranks_(ranks), warns_(warns) {}
  // Error(config) if the optimizer cannot update a requested sparse embedding.
  bool applies(const std::string& name, int64_t rows, const EmbeddingOptions& options) const;

 private:
  RunConfig config_;
  int ranks_;
  bool warns_;
  mutable std::set<std::string> warned_;
};

// Layers with sparse embeddings that are sharded over the ranks of the axis `data` (SparseRowBlocks); else
// DefaultLayers.

// Returns a value for PartRequest::layers; null if the model does not request it, or with one rank.
LayersFactory sharded_row_layers(const Context& context);

class SharedRows;

// Makes the layer of an embedding and turns its weight into a sparse embedding. `blocks`: distribution over ranks
// (null: not sharded); `host`: shared memory (null: not shared).
Layer sparse_embedding_layer(const ParameterPtr& weight, const LayerStore& store,
                             std::shared_ptr<const SparseRowBlocks> blocks = nullptr,
                             std::shared_ptr<SharedRows> host = nullptr);
std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts);
// Rank 0 warns if the optimizer is lazy and the run has no sparse embedding.
void warn_if_lazy_is_unused(const Context& context, const std::vector<ParameterPtr>& tables);
// Begins an accumulation.
void begin_rows(const std::vector<ParameterPtr>& tables);
// Sets the update to the rows that this rank has touched.
void take_rows(const std::vector<ParameterPtr>& tables);

}  // namespace convoy
