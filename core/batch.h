// A batch: named tensors whose dimension 0 is rows (counted from the end under stacking: members come before rows).
//
// A row is never split: a positive with its negatives, a user with its candidates, a sequence. Strategies slice rows and
// know nothing else of a batch.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

// One micro-batch's rows within a share: [begin, end) of it, and the index of its first row within the global batch.
struct MicroBatch {
  int64_t begin = 0, end = 0;
  int64_t first_row = 0;
};

struct Batch {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // few; in the data set's order
  int64_t rows = 0;                                         // rows of this share; may be 0
  int64_t first_row = 0;                                    // index of its first row within the global batch
  int64_t global_rows = 0;   // rows of the global batch over all shares (ragged at the end of an epoch)
  int64_t nominal_rows = 0;  // rows of a full global batch
  // Micro-batch j is this share's part of slice j of the global batch, so that every layout sees the same ones. Parts may
  // be empty. None listed: the share is one micro-batch.
  std::vector<MicroBatch> micro;

  const at::Tensor& at(const std::string& name) const;    // Error(config) naming the fields
  const at::Tensor* find(const std::string& name) const;  // null when absent
  Batch slice(int64_t begin, int64_t end) const;          // rows [begin, end) of a share of one micro-batch; views
  std::vector<Batch> micro_batches() const;               // views; one at least
  Batch to(at::Device device, bool non_blocking) const;
};

// Shares of `rows` rows over `count`: sizes differ by one at most, the first ones larger. [begin, end).
std::pair<int64_t, int64_t> share_of(int64_t rows, int64_t index, int64_t count);

// The rows of the global batch that share `index` of `count` reads: its part of each of `slices` slices, in order.
std::vector<MicroBatch> micro_batches_of(int64_t rows, int64_t slices, int64_t index, int64_t count);

}  // namespace convoy
