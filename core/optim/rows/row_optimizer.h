// RowOptimizer: applies gradients (rows, values) to tables; an update touches only those rows.
//
// It is the Optimizer of sparse embeddings. A table has the values that the dense optimizer of the same name would
// compute. Each row remembers its last update; its missed updates are applied when it is next read (row_loops.h).
// Between two flushes the table's memory is stale; `look_up` returns current values. With `lazy`, rows without gradient
// do not change (as torch.optim.SparseAdam).
// Tables are fp32 or fp64. On the CPU each call is one fused loop, parallel over rows; elsewhere tensor operations with
// one read to the host per call. The result does not depend on the number of threads.
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

// Memory of a table that several processes share: the memory of the optimizer's state, and the rows that this process
// flushes.
struct TableMemory {
  std::function<at::Tensor(at::IntArrayRef shape, at::ScalarType dtype)> zeros;  // null: memory of this process
  // Ranges [begin, end) of these rows, maybe none; nullopt: all rows.
  std::optional<std::vector<std::pair<int64_t, int64_t>>> local_rows = {};
};

class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;
  // `values` [rows, width], contiguous, belongs to the caller and keeps its storage. Moments start at zero.
  virtual int add_table(at::Tensor values, const SlotOptions& options, const TableMemory& memory = {}) = 0;
  // Writes the current values of `rows` (int64 [n] on the table's device) into `out` [n, width]. Changes nothing else.
  virtual void look_up(int table, const at::Tensor& rows, at::Tensor out) = 0;
  // Makes one update of a table. Call it for every table in every update, without rows if none was touched. `rows` are
  // unique; `gradients` [n, width]. If scalars.apply is false, nothing changes.
  virtual void update(int table, const at::Tensor& rows, const at::Tensor& gradients, const UpdateScalars& scalars) = 0;
  // Makes all rows of values and moments current; for a shared table, only TableMemory::local_rows. All processes that
  // share a table make the same calls of `update` and `flush`.
  virtual void flush(int table) = 0;
  // Returns memory for copies of values and moments, in this order, which the same processes share; empty if the table
  // is not on the CPU. Error(out_of_memory).
  virtual std::vector<at::Tensor> memory_for_copies(int table) = 0;
  // As `flush`, and copies the same rows in the same pass: each is read from memory only once.
  virtual void flush_and_copy(int table, const std::vector<at::Tensor>& copies) = 0;
  // As `flush`, for these rows only (int64 [n] on the table's device, unique).
  virtual void flush_rows(int table, const at::Tensor& rows) = 0;
  // True if `flush` would change something.
  virtual bool stale(int table) const = 0;
  // Returns moments by name, in the shape of the values; writable. Current only after `flush`.
  virtual NamedTensors moments(int table) = 0;
  // The caller has written current values and moments into the table.
  virtual void restored(int table) = 0;
};

// Creates the row optimizer for `optimizer.name`: RowSgd for sgd, RowAdagrad for adagrad, RowAdam for adam and adamw.
// `tensors`: uses the tensor path on the CPU too; for tests.
std::unique_ptr<RowOptimizer> make_row_optimizer(const Component& optimizer, bool tensors = false);

}  // namespace convoy
