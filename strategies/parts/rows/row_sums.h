// RowSums: adds up rows that come from several ranks, each row once from each, in the order in which they are told.
//
// Memory stays from update to update. On the CPU; one thread.
#pragma once
#include <ATen/core/Tensor.h>

#include "strategies/parts/rows/row_index.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {

class RowSums {
 public:
  // Nothing is added up yet; `most` rows will come, of `value`'s width and dtype (fp32 or fp64). `updaters`: those of others
  // are left out; outlives the adding up.
  void begin(int64_t most, const at::Tensor& value, const RowBlocks* updaters = nullptr);
  // One rank's n rows, as messages hold them: numbers [n] without one twice, of 4 or 8 bytes, and values [n, width] of the
  // dtype, at its alignment.
  void add(const int32_t* numbers, const char* values, int64_t n);
  void add(const int64_t* numbers, const char* values, int64_t n);
  // Valid until the next begin.
  TableRows rows();

 private:
  template <class Number>
  void add_any(const Number* numbers, const char* values, int64_t n);

  RowIndex index_;
  const RowBlocks* updaters_ = nullptr;  // null: all rows are added up
  at::Tensor numbers_, values_;          // [capacity], [capacity, width]
};

}  // namespace convoy
