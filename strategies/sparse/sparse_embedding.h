// SparseEmbedding: an embedding whose steps touch only the rows that they look up.
//
// It belongs to a Parameter (Parameter::table) outside the flat tensors, without a dense gradient. A training forward
// finds the rows of its ids. Rows in the table may be stale, so the optimizer computes current values
// (RowOptimizer::look_up). The embedding keeps them until `begin`; backward adds to their gradients. So several
// look-ups of one row, by micro-batches, layers or a checkpointed block, share one position and their gradients add up.
// A row counts as touched from its first look-up on.
// Sharded tables (SparseRowBlocks): the value has this rank's rows, and a RowSource fetches others. Rows are numbered
// as in the whole table, except in `update`, which uses local indices.
// Shared tables (shared_rows.h): all ranks of a host look rows up in one copy, and each updates some.
// The parameter's value anchors the graph: the look-up's node leads to its accumulator and passes no gradient.
// Call order: connect (and set_source); then for each update begin, look-ups and their backwards, take_rows (or a
// RowExchange), the optimizer's update.
// Threads: the rank's thread, and its backward.
// Failure: Error(training) for an id outside the table.
#pragma once
#include <ATen/core/Tensor.h>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/layers/sparse_table.h"
#include "strategies/sparse/exchange/row_index.h"

namespace convoy {

class SharedRows;

// RowSource: fetches rows of sharded tables.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Returns the ranks that own the rows.
  virtual Communicator& group() = 0;
  // Collective. Writes the current values of rows `numbers` [n] of a table to `out` [n, width]. `table`: the number
  // that set_source got. `trained`: true for a training look-up of newly touched rows.
  virtual void fetch(int table, const at::Tensor& numbers, const at::Tensor& out, bool trained) = 0;
};

// Returns rows [begin, end) of a contiguous tensor, without a graph. narrow() would dispatch three operators, for each
// table several times a step.
at::Tensor rows_between(const at::Tensor& tensor, int64_t begin, int64_t end);

class SparseEmbedding : public SparseTable, public std::enable_shared_from_this<SparseEmbedding> {
 public:
  // `value` [rows, width]: value of the parameter; with `blocks`, the local rows. `host`: the shared memory, or null.
  SparseEmbedding(std::string name, at::Tensor value, std::shared_ptr<const SparseRowBlocks> blocks = nullptr,
                  std::shared_ptr<SharedRows> host = nullptr);

  const std::shared_ptr<const SparseRowBlocks>& blocks() const { return blocks_; }  // null: not sharded
  const std::shared_ptr<SharedRows>& host() const { return host_; }                 // null: not shared
  // Returns the distribution of a shared table's updates over ranks. Null: this rank updates all local rows.
  const SparseRowBlocks* updaters() const { return updaters_.get(); }
  // Returns the positions of the rows touched since `begin`, in the order of `touched`; for tables on the CPU.
  const RowIndex& positions() const { return positions_; }
  // Returns the number of rows of the whole table.
  int64_t rows() const { return blocks_ ? blocks_->rows() : value_.size(0); }

  SparseEmbedding& embedding() override { return *this; }
  std::vector<int64_t> shape() const override { return {rows(), value_.size(1)}; }
  bool is_sharded() const override { return blocks_ != nullptr; }
  bool is_shared() const override { return host_ != nullptr; }
  Communicator* update_group() const override;
  void connect(RowOptimizer* optimizer, const SlotOptions& options) override;
  void begin() override;
  TableRows touched() override;
  at::Tensor dense(const at::Tensor& numbers, const at::Tensor& values) const override;
  // Sets the source of a sharded table's rows, which outlives every look-up. `table`: the table's number in the source.
  void set_source(RowSource* source, int table);
  RowSource* source() const { return source_; }  // null: all rows are local
  // Writes the current values of local rows `indices` [n] to `out`.
  void look_up_local(const at::Tensor& indices, const at::Tensor& out) const;

  // ids […] → […, width].
  at::Tensor embed(const at::Tensor& ids, const ForwardState& state);

  // Training look-ups since `begin` or the last call: the memory of their ids.
  struct Lookup {
    const int64_t* ids = nullptr;
    int64_t n = 0;
  };
  std::vector<Lookup> take_lookups();
  // Touches the rows of `ids` (contiguous, on the CPU). Later look-ups until `begin` use parts of this memory. Returns
  // the new rows; the caller writes their values.
  TableRows prefetch(const at::Tensor& ids);

 private:
  class Backward;
  at::Tensor embed_trained(const at::Tensor& ids);
  at::Tensor embed_untrained(const at::Tensor& ids);
  at::Tensor embed_fetched(const at::Tensor& ids);
  at::Tensor positions_of(const at::Tensor& ids);
  at::Tensor touch(const at::Tensor& ids);
  at::Tensor prefetched(const at::Tensor& ids) const;
  at::Tensor positions_on_device(const at::Tensor& ids);
  void make_room(int64_t rows);
  void fetch(int64_t first);
  void zero_gradients(int64_t first);  // from this row on
  TableRows rows_from(int64_t first) const;
  void add(const at::Tensor& positions, const at::Tensor& gradient, int64_t round);
  void check_ids(const at::Tensor& ids) const;

  std::string name_;
  at::Tensor value_;
  RowOptimizer* optimizer_ = nullptr;
  int index_ = 0;
  std::shared_ptr<const SparseRowBlocks> blocks_;
  std::shared_ptr<SharedRows> host_;
  std::shared_ptr<const SparseRowBlocks> updaters_;
  RowSource* source_ = nullptr;
  int source_table_ = 0;
  std::vector<Lookup> lookups_;                       // look-ups of tables with a source
  at::Tensor prefetched_ids_, prefetched_positions_;  // undefined: no prefetch
  int64_t round_ = 0;                                 // number of `begin` calls
  RowIndex positions_;                                // positions of touched rows (CPU)
  at::Tensor numbers_;                                // [capacity]: row numbers by position
  int64_t count_ = 0;                                 // touched rows
  at::Tensor row_values_, gradients_;                 // [capacity, width]: current values, and gradients
};

// --- Layers of sparse embeddings ---

// Returns a value for PartRequest::layers: layers with sparse embeddings that are sharded over the ranks of the axis
// `data` (SparseRowBlocks), and otherwise DefaultLayers. Null if the model does not request it, or with one rank.
LayersFactory sharded_row_layers(const Context& context);

// Makes the layer of an embedding and turns its weight into a sparse embedding. `blocks`: distribution over ranks
// (null: not sharded); `host`: shared memory (null: not shared).
Layer sparse_embedding_layer(const ParameterPtr& weight, const LayerStore& store,
                             std::shared_ptr<const SparseRowBlocks> blocks = nullptr,
                             std::shared_ptr<SharedRows> host = nullptr);

}  // namespace convoy
