// RowOptimizer: applies gradients (rows, values) to tables, of which it touches those rows only.
//
// Role: what Optimizer is for flat dense slots. A table keeps the values that the dense optimizer of the same name would have
// reached: each row remembers its last update, and what it has missed since is made up for when it is next looked at
// (row_history.h). So between two calls of `settle` the table's own memory is behind; `look_up` gives what is true now.
// With `lazy` rows stay where they were (the semantics of torch's SparseAdam).
// Tables are fp32 or fp64. On the CPU one fused loop for each call, parallel over rows; elsewhere tensor operations, with
// one read to the host a call. The result does not depend on the number of threads.
// Threads: one per rank, from which parallel loops start.
// Failure: Error(config) for a table with a weight decay that needs all rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/optim/optimizer.h"

namespace convoy {

// Where what an optimizer keeps of a table lies, and which rows it settles, where several processes share one table.
struct TableMemory {
  std::function<at::Tensor(at::IntArrayRef shape, at::ScalarType dtype)> zeros;  // none: memory of this process
  // [begin, end) each, perhaps none; not told: all rows.
  std::optional<std::vector<std::pair<int64_t, int64_t>>> own = {};
};

class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;
  // `values` [rows, width], contiguous, stays the caller's and keeps its storage. Moments start at zero.
  virtual int add_table(at::Tensor values, const SlotOptions& options, const TableMemory& memory = {}) = 0;
  // What the table's `rows` (int64 [n] on its device) hold now, into `out` [n, width]. Writes nothing else.
  virtual void look_up(int table, const at::Tensor& rows, at::Tensor out) = 0;
  // One update of a table: every update calls it for every table, with no rows where none was touched. `rows`
  // are unique; `gradients` [n, width]. Where scalars.apply is false nothing is changed.
  virtual void update(int table, const at::Tensor& rows, const at::Tensor& gradients, const UpdateScalars& scalars) = 0;
  // Brings all rows of values and moments to this moment: the own ones, where there are others'. All who share a table call it
  // and `update` for the same updates.
  virtual void settle(int table) = 0;
  // The same of these rows alone (int64 [n] on its device, unique).
  virtual void settle_rows(int table, const at::Tensor& rows) = 0;
  // Whether `settle` would find anything to do.
  virtual bool behind(int table) const = 0;
  // By name, shaped as the values; writable. True of this moment only behind `settle`.
  virtual std::vector<std::pair<std::string, at::Tensor>> moments(int table) = 0;
  // Values and moments were written to from outside and are those of this moment.
  virtual void restored(int table) = 0;
};

// By the configuration's `optimizer`: row_sgd, row_adam or row_adagrad for the dense one of that name.
std::unique_ptr<RowOptimizer> make_row_optimizer(const Component& optimizer);

}  // namespace convoy
