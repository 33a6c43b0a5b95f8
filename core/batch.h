// A batch: named tensors with rows as dimension 0. In a stacked ensemble the member dimension comes first, so code
// counts dimensions from the end.
// A row is never split. Examples: a positive with its negatives, a user with its candidates, a sequence. Strategies
// split batches by rows and do not interpret the fields.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

// Rows [begin, end) of a share, which form one micro-batch; `first_row` is the index of the first one in the global
// batch.
struct MicroBatch {
  int64_t begin = 0, end = 0;
  int64_t first_row = 0;
};

struct Batch {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // few; in the order of the data set
  int64_t rows = 0;                                         // rows of this share; may be 0
  int64_t first_row = 0;                                    // index of its first row in the global batch
  int64_t global_rows = 0;   // rows of the global batch over all shares; fewer in the last batch of an epoch
  int64_t nominal_rows = 0;  // rows of a full global batch
  // Element j: the rows of this share that are in micro-batch j of the global batch. So every layout has equal
  // micro-batches. An element may have no rows. An empty list means that the share is one micro-batch.
  std::vector<MicroBatch> micro = {};

  const at::Tensor& at(const std::string& name) const;    // throws Error(config) that lists the fields
  const at::Tensor* find(const std::string& name) const;  // null if the field does not exist
  at::Tensor optional(const std::string& name) const;     // undefined if the field does not exist
  Batch slice(int64_t begin, int64_t end) const;          // rows [begin, end) of a share with one micro-batch; views
  std::vector<Batch> micro_batches() const;               // views; at least one
  Batch to(at::Device device, bool non_blocking) const;
};

// Rows [begin, end) of share `index`, if `count` shares divide `rows`. Sizes differ by at most one; the first shares
// are larger.
std::pair<int64_t, int64_t> share_of(int64_t rows, int64_t index, int64_t count);

// Divides a global batch of `rows` rows into micro-batches. Returns the rows that share `index` of `count` has in each
// of them, in order.
std::vector<MicroBatch> micro_batches_of(int64_t rows, int64_t micro_batches, int64_t index, int64_t count);

}  // namespace convoy
