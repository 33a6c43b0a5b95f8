// Positions of a step within its epoch, sent through that epoch's permutation.
#include "core/data/sampler.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/data/permutation.h"
#include "core/error.h"

namespace convoy {
namespace {

Permutation order_of(int64_t rows, uint64_t seed, int64_t epoch) {
  return Permutation(rows, seed, "sampler", uint64_t(epoch));
}

}  // namespace

Sampler::Sampler(int64_t rows, int64_t global_rows, uint64_t seed, bool shuffle)
    : rows_(rows), global_rows_(global_rows), seed_(seed), shuffle_(shuffle) {
  CONVOY_CHECK(rows > 0 && global_rows > 0, "a sampler of ", rows, " rows in batches of ", global_rows);
}

int64_t Sampler::steps_per_epoch() const { return (rows_ + global_rows_ - 1) / global_rows_; }

int64_t Sampler::epoch_of(int64_t step) const { return step / steps_per_epoch(); }

int64_t Sampler::rows_of(int64_t step) const {
  const int64_t begin = step % steps_per_epoch() * global_rows_;
  return std::min(global_rows_, rows_ - begin);
}

at::Tensor Sampler::indices(int64_t step, int64_t index, int64_t count) const {
  return indices(step, micro_batches_of(rows_of(step), 1, index, count));
}

at::Tensor Sampler::indices(int64_t step, const std::vector<MicroBatch>& micro) const {
  const int64_t offset = step % steps_per_epoch() * global_rows_;
  auto result = at::empty({micro.back().end}, at::kLong);
  int64_t* out = result.mutable_data_ptr<int64_t>();
  const auto order = order_of(rows_, seed_, epoch_of(step));
  for (const MicroBatch& part : micro) {
    const int64_t first = offset + part.first_row;
    for (int64_t i = first; i < first + part.end - part.begin; ++i) *out++ = shuffle_ ? order.at(i) : i;
  }
  return result;
}

int64_t Sampler::permuted(int64_t epoch, int64_t position) const {
  CONVOY_CHECK(0 <= position && position < rows_, "position ", position, " of ", rows_, " rows");
  return shuffle_ ? order_of(rows_, seed_, epoch).at(position) : position;
}

}  // namespace convoy
