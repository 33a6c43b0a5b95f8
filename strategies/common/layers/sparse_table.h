// SparseTable: an embedding outside the flat tensors, without a dense gradient. Its steps touch only the rows that they
// look up. The implementation is in strategies/sparse; strategies without sparse embeddings do not need it.
//
// Call order: connect; then for each update begin, look-ups and their backwards, set_update, the optimizer's update.
// Threads: the rank's thread, and its backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/layers.h"
#include "core/optim/rows/row_optimizer.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

class SparseEmbedding;  // strategies/sparse/sparse_embedding.h
struct LayerStore;      // strategies/common/layers/default_layers.h

// TableRows: some rows of a table: numbers [n] int64, unique, and values [n, width].
struct TableRows {
  at::Tensor numbers, values;
};

class SparseTable {
 public:
  virtual ~SparseTable() = default;
  virtual SparseEmbedding& embedding() = 0;        // for strategies/sparse
  virtual std::vector<int64_t> shape() const = 0;  // shape of the whole table
  virtual bool is_sharded() const = 0;             // each rank holds some rows
  virtual bool is_shared() const = 0;              // ranks of a host share one copy
  virtual Communicator* update_group() const = 0;  // ranks that divide an update's rows; null: this rank updates all
  // Sets the optimizer that computes current values of rows. It outlives every look-up.
  virtual void connect(RowOptimizer* optimizer, const SlotOptions& options) = 0;
  // Begins an accumulation: no row is touched.
  virtual void begin() = 0;
  // Rows that this rank has touched, with gradients; views that the next look-up may invalidate.
  virtual TableRows touched() = 0;
  // Returns `values` of the given rows and zeros elsewhere, in the table's shape. Other rows need no memory until they
  // are read.
  virtual at::Tensor dense(const at::Tensor& numbers, const at::Tensor& values) const = 0;
  // Sets the rows of the update: rows that any rank touched and this rank updates. Valid until the next training
  // look-up.
  void set_update(TableRows rows) { update_ = std::move(rows); }
  const TableRows& update() const { return update_; }

 private:
  TableRows update_;
};

// Begins an accumulation of all tables.
inline void begin_rows(const std::vector<ParameterPtr>& tables) {
  for (const ParameterPtr& table : tables) table->table->begin();
}
// Sets the update to the rows that this rank has touched.
inline void take_rows(const std::vector<ParameterPtr>& tables) {
  for (const ParameterPtr& table : tables) table->table->set_update(table->table->touched());
}

// SparseRule: decides which embeddings of a model become sparse, and makes their layers.
class SparseRule {
 public:
  virtual ~SparseRule() = default;
  // Error(config) if the optimizer cannot update a requested sparse embedding.
  virtual bool applies(const std::string& name, int64_t rows, const EmbeddingOptions& options) const = 0;
  // Makes the layer of an embedding and turns its weight into a sparse embedding, whole on this rank.
  virtual Layer layer(const ParameterPtr& weight, const LayerStore& store) const = 0;
};
// `ranks`: size of the data axis. `warns`: warn about a dense table that is large enough to be sparse. Implemented in
// strategies/sparse/sparse_embedding.cpp.
std::shared_ptr<const SparseRule> make_sparse_rule(const RunConfig& config, int ranks, bool warns = false);

}  // namespace convoy
