// Sampler: which rows make global batch t. A pure function of (draw, epoch, step): it depends neither on the world
// size nor on the strategy, and resuming is arithmetic. A member of an ensemble has one of its own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/batch.h"
#include "core/data/draws.h"

namespace convoy {

class Sampler {
 public:
  // rows: of the training split; global_rows: of a full global batch (the last of an epoch may be smaller, never empty).
  Sampler(int64_t rows, int64_t global_rows, uint64_t seed, bool shuffle = true);
  // Of a member's rows, or of those of a single model, shuffled by the draw's seed.
  Sampler(int64_t rows, int64_t global_rows, const MemberDraw& draw);

  int64_t steps_per_epoch() const;
  int64_t epoch_of(int64_t step) const;  // step counts from 0 over the whole training
  int64_t rows_of(int64_t step) const;   // of that global batch
  // Row indices of share `index` of `count` of global batch `step`: int64, CPU. The shares of a step are contiguous parts
  // of the global batch, sizes differing by one at most.
  at::Tensor indices(int64_t step, int64_t index, int64_t count) const;
  // The same for a share of several micro-batches, as micro_batches_of made them.
  at::Tensor indices(int64_t step, const std::vector<MicroBatch>& micro) const;
  // The same into memory of the caller, who has room for as many as the last micro-batch ends at.
  void write_indices(int64_t step, const std::vector<MicroBatch>& micro, int64_t* out) const;
  // The order of an epoch: element i without materialising the rest (tests compare it with `indices`).
  int64_t permuted(int64_t epoch, int64_t position) const;
  const Draws& draws() const { return draws_; }

 private:
  Draws draws_;
  int64_t rows_;  // drawn
  int64_t global_rows_;
  uint64_t seed_;
  bool shuffle_;
};

}  // namespace convoy
