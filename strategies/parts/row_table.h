// RowTable: an embedding of which a step touches only the rows that it looks up.
//
// Stands behind a Parameter (Parameter::table) that is no part of the flat buffers and has no gradient of its size. A forward
// in training finds the rows of its ids, asks the optimizer for what they hold now (RowOptimizer::look_up: the table's memory
// may be behind) and keeps them until `begin`; backward adds to their gradients. So several lookups of one row, by several
// micro-batches, layers or a block that is run again, share its place and add up, and a row counts as touched from its first
// lookup on.
// The parameter's value is the anchor of the graph: the lookup's node leads to its accumulator and hands it nothing.
// Call order: connect; then for each update begin, lookups and their backwards, take (or merge), the optimizer's update.
// Threads: the rank's own, and its backward.
// Failure: Error(training) for an id that the table has no row of.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/optim/row_optimizer.h"
#include "strategies/parts/parameter.h"
#include "strategies/parts/row_index.h"

namespace convoy {

// Some rows of a table: numbers [n] int64, unique, and values [n, width].
struct TableRows {
  at::Tensor numbers, values;
};

class RowTable : public std::enable_shared_from_this<RowTable> {
 public:
  // `value` [rows, width] is the parameter's.
  RowTable(std::string name, at::Tensor value);

  // Who knows what rows hold; outlives every lookup.
  void connect(RowOptimizer* optimizer, int index);

  // ids […] → […, width].
  at::Tensor embed(const at::Tensor& ids, const ForwardState& state);

  // The next accumulation begins: no row is touched.
  void begin();
  // What this rank has touched since, with gradients; views that the next lookup may end.
  TableRows touched();
  // What the update is made of: all ranks' rows. Valid until the next lookup of training.
  void set_update(TableRows rows) { update_ = std::move(rows); }
  const TableRows& update() const { return update_; }
  // `values` of the given rows, and zeros, in the table's shape; other rows take no memory before they are read.
  at::Tensor dense(const at::Tensor& numbers, const at::Tensor& values) const;

 private:
  class Backward;
  at::Tensor embed_trained(const at::Tensor& ids);
  at::Tensor embed_untrained(const at::Tensor& ids);
  at::Tensor places_of(const at::Tensor& ids);
  at::Tensor places_on_device(const at::Tensor& ids);
  void make_room(int64_t rows);
  void fetch(int64_t first);
  void add(const at::Tensor& places, const at::Tensor& gradient, int64_t round);
  void check_ids(const at::Tensor& ids) const;

  std::string name_;
  at::Tensor value_;
  RowOptimizer* optimizer_ = nullptr;
  int index_ = 0;
  int64_t round_ = 0;            // counts begins
  RowIndex places_;              // of the rows touched (CPU)
  at::Tensor numbers_;           // the same as a tensor [capacity]
  int64_t count_ = 0;            // rows touched
  at::Tensor held_, gradients_;  // [capacity, width]: what they hold, and their gradients
  TableRows update_;
};

}  // namespace convoy
