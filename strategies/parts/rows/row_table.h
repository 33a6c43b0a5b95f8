// RowTable: an embedding of which a step touches only the rows that it looks up.
//
// Stands behind a Parameter (Parameter::table) that is no part of the flat buffers and has no gradient of its size. A forward
// in training finds the rows of its ids, asks the optimizer for what they hold now (RowOptimizer::look_up: the table's memory
// may be behind) and keeps them until `begin`; backward adds to their gradients. So several lookups of one row, by several
// micro-batches, layers or a block that is run again, share its place and add up, and a row counts as touched from its first
// lookup on.
// Where rows are dealt out to ranks (row_blocks.h), the value is what this rank holds of the table, and a RowSource brings what
// lookups need; rows are counted by their numbers in the whole table, but in `update`, which is of held ones.
// Where ranks of a host share one copy (host_rows.h), all look rows up there, and each updates some.
// The parameter's value is the anchor of the graph: the lookup's node leads to its accumulator and hands it nothing.
// Call order: connect (and draw_from); then for each update begin, lookups and their backwards, take (or merge), the optimizer's update.
// Threads: the rank's own, and its backward.
// Failure: Error(training) for an id that the table has no row of.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/optim/row_optimizer.h"
#include "strategies/parts/parameter.h"
#include "strategies/parts/rows/row_blocks.h"
#include "strategies/parts/rows/row_index.h"

namespace convoy {

class HostRows;

// Some rows of a table: numbers [n] int64, unique, and values [n, width].
struct TableRows {
  at::Tensor numbers, values;
};

// Who brings rows of tables that are dealt out to ranks.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // To which the rows are dealt out.
  virtual Communicator& group() = 0;
  // What rows `numbers` [n] of a table (RowTable::index) hold now, into `out` [n, width]. Collective. `trained`: they are those
  // touched since `begin` that were not fetched yet.
  virtual void fetch(int table, const at::Tensor& numbers, const at::Tensor& out, bool trained) = 0;
};

class RowTable : public std::enable_shared_from_this<RowTable> {
 public:
  // `value` [rows, width] is the parameter's; with `blocks`, of the rows that this rank holds. `host`: who shares it.
  RowTable(std::string name, at::Tensor value, std::shared_ptr<const RowBlocks> blocks = nullptr,
           std::shared_ptr<HostRows> host = nullptr);

  const std::shared_ptr<const RowBlocks>& blocks() const { return blocks_; }  // null: it is not dealt out
  const std::shared_ptr<HostRows>& host() const { return host_; }             // null: this copy is this rank's alone
  // Of a table that ranks of a host share: which of them updates which rows. Null: this rank updates all that it holds.
  const RowBlocks* updaters() const { return updaters_.get(); }
  // Places of the rows touched since `begin`, in the order of `touched`; of tables on the CPU.
  const RowIndex& places() const { return places_; }
  // Among whom an update's rows are divided; null: this rank updates all.
  Communicator* updates_with() const;
  // Of the whole table.
  int64_t rows() const { return blocks_ ? blocks_->rows() : value_.size(0); }
  std::vector<int64_t> shape() const { return {rows(), value_.size(1)}; }

  // Makes `optimizer` the one that knows what rows hold. It outlives every lookup.
  void connect(RowOptimizer* optimizer, const SlotOptions& options);
  // Of a table with blocks: who brings rows; outlives every lookup. `table`: what the source calls it.
  void draw_from(RowSource* source, int table);
  RowSource* source() const { return source_; }  // null: rows are all here
  // What held rows `places` [n] hold now.
  void look_up_held(const at::Tensor& places, const at::Tensor& out) const;

  // ids […] → […, width].
  at::Tensor embed(const at::Tensor& ids, const ForwardState& state);

  // The next accumulation begins: no row is touched.
  void begin();
  // Lookups of training since `begin` or the last call: the ids that they were given, where these lie.
  struct Lookup {
    const int64_t* ids = nullptr;
    int64_t n = 0;
  };
  std::vector<Lookup> take_lookups();
  // Touches the rows of `ids` (contiguous, on the CPU), of which lookups until `begin` will ask for parts, as they lie there.
  // Which of them are new, and where the caller is to put what they hold.
  TableRows foresee(const at::Tensor& ids);
  // What this rank has touched since, with gradients; views that the next lookup may end.
  TableRows touched();
  // What the update is made of: all ranks' rows, of those that this rank updates. Valid until the next lookup of training.
  void set_update(TableRows rows) { update_ = std::move(rows); }
  const TableRows& update() const { return update_; }
  // `values` of the given rows, and zeros, in the table's shape; other rows take no memory before they are read.
  at::Tensor dense(const at::Tensor& numbers, const at::Tensor& values) const;

 private:
  class Backward;
  at::Tensor embed_trained(const at::Tensor& ids);
  at::Tensor embed_untrained(const at::Tensor& ids);
  at::Tensor embed_fetched(const at::Tensor& ids);
  at::Tensor places_of(const at::Tensor& ids);
  at::Tensor touch(const at::Tensor& ids);
  at::Tensor foreseen(const at::Tensor& ids) const;
  at::Tensor places_on_device(const at::Tensor& ids);
  void make_room(int64_t rows);
  void fetch(int64_t first);
  TableRows held_from(int64_t first) const;
  void add(const at::Tensor& places, const at::Tensor& gradient, int64_t round);
  void check_ids(const at::Tensor& ids) const;

  std::string name_;
  at::Tensor value_;
  RowOptimizer* optimizer_ = nullptr;
  int index_ = 0;
  std::shared_ptr<const RowBlocks> blocks_;
  std::shared_ptr<HostRows> host_;
  std::shared_ptr<const RowBlocks> updaters_;
  RowSource* source_ = nullptr;
  int source_table_ = 0;
  std::vector<Lookup> lookups_;                // of tables with a source
  at::Tensor foreseen_ids_, foreseen_places_;  // undefined: none were
  int64_t round_ = 0;                          // counts begins
  RowIndex places_;                            // of the rows touched (CPU)
  at::Tensor numbers_;                         // the same as a tensor [capacity]
  int64_t count_ = 0;                          // rows touched
  at::Tensor held_, gradients_;                // [capacity, width]: what they hold, and their gradients
  TableRows update_;
};

}  // namespace convoy
