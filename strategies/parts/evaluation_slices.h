// Evaluation in slices, so that stages work on several at once and a batch needs no more memory than a step's.
#pragma once
#include <algorithm>
#include <vector>

#include "core/batch.h"

namespace convoy {

// The batch's own micro-batches, else its rows in up to `count` slices that differ by one row at most; one at least.
inline std::vector<Batch> evaluation_slices(const Batch& batch, int64_t count) {
  if (!batch.micro.empty()) return batch.micro_batches();
  const int64_t slices = std::max<int64_t>(1, std::min(count, batch.rows));
  std::vector<Batch> all;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const auto [begin, end] = share_of(batch.rows, slice, slices);
    all.push_back(batch.slice(begin, end));
  }
  return all;
}

}  // namespace convoy
