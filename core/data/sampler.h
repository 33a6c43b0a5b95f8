// Sampler: which rows make global batch t. A pure function of (seed, epoch, step): it depends neither on the world size
// nor on the strategy, and resuming is arithmetic.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/batch.h"

namespace convoy {

class Sampler {
 public:
  // rows: of the training split; global_rows: of a full global batch (the last of an epoch may be smaller, never empty).
  Sampler(int64_t rows, int64_t global_rows, uint64_t seed, bool shuffle = true);

  int64_t steps_per_epoch() const;
  int64_t epoch_of(int64_t step) const;  // step counts from 0 over the whole training
  int64_t rows_of(int64_t step) const;   // of that global batch
  // Row indices of share `index` of `count` of global batch `step`: int64, CPU. The shares of a step are contiguous parts
  // of the global batch, sizes differing by one at most.
  at::Tensor indices(int64_t step, int64_t index, int64_t count) const;
  // The same for a share of several micro-batches, as micro_batches_of made them.
  at::Tensor indices(int64_t step, const std::vector<MicroBatch>& micro) const;
  // The permutation of an epoch: element i without materialising the rest (tests compare it with `indices`).
  int64_t permuted(int64_t epoch, int64_t position) const;

 private:
  int64_t rows_;
  int64_t global_rows_;
  uint64_t seed_;
  bool shuffle_;
};

}  // namespace convoy
