// RowSums: adds up rows that come from several ranks, each row once from each, in the order in which they are told.
//
// Memory stays from update to update. On the CPU; one thread.
#pragma once
#include <ATen/core/Tensor.h>

#include "strategies/parts/row_index.h"
#include "strategies/parts/row_table.h"

namespace convoy {

class RowSums {
 public:
  // Nothing is added up yet; `most` rows will come, of `value`'s width, dtype and device.
  void begin(int64_t most, const at::Tensor& value);
  // numbers [n] int64, values [n, width], contiguous.
  void add(const int64_t* numbers, const at::Tensor& values);
  // Valid until the next begin.
  TableRows rows();

 private:
  RowIndex index_;
  at::Tensor numbers_, values_;  // [capacity], [capacity, width]
};

}  // namespace convoy
