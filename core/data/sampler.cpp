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

MemberDraw all_rows(uint64_t seed) {
  MemberDraw draw;
  draw.seed = seed;
  return draw;
}

int64_t checked(int64_t rows, int64_t global_rows) {
  CONVOY_CHECK(rows > 0 && global_rows > 0, "a sampler of ", rows, " rows in batches of ", global_rows);
  return rows;
}

}  // namespace

Sampler::Sampler(int64_t rows, int64_t global_rows, uint64_t seed, bool shuffle)
    : Sampler(rows, global_rows, all_rows(seed)) {
  shuffle_ = shuffle;
}

Sampler::Sampler(int64_t rows, int64_t global_rows, const MemberDraw& draw)
    : draws_(draw, checked(rows, global_rows)),
      rows_(draws_.size()),
      global_rows_(global_rows),
      seed_(draw.seed),
      shuffle_(true) {}

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
  auto result = at::empty({micro.back().end}, at::kLong);
  write_indices(step, micro, result.mutable_data_ptr<int64_t>());
  return result;
}

void Sampler::write_indices(int64_t step, const std::vector<MicroBatch>& micro, int64_t* out) const {
  const int64_t offset = step % steps_per_epoch() * global_rows_;
  const auto order = order_of(rows_, seed_, epoch_of(step));
  int64_t* to = out;
  for (const MicroBatch& part : micro) {
    const int64_t first = offset + part.first_row;
    for (int64_t i = first; i < first + part.end - part.begin; ++i) *to++ = shuffle_ ? order.at(i) : i;
  }
  draws_.map(out, to - out);
}

int64_t Sampler::permuted(int64_t epoch, int64_t position) const {
  CONVOY_CHECK(0 <= position && position < rows_, "position ", position, " of ", rows_, " rows");
  return draws_.at(shuffle_ ? order_of(rows_, seed_, epoch).at(position) : position);
}

}  // namespace convoy
