// Maps a step's positions within its epoch to rows, with that epoch's permutation.

#include "core/data/sampler.h"

#include <ATen/ops/empty.h>
#include <algorithm>

#include "core/base/error.h"

namespace convoy {

// --- RowSample ---
// Bootstrap: draw i is one counter of the generator. Subset: the first rows of a permutation. Folds: contiguous ranges
// of one permutation.

namespace {

Permutation order_of(const MemberSample& sample, int64_t rows) {
  if (sample.rows == MemberSample::Rows::fold) return Permutation(rows, 0, "folds");  // one partition for every seed
  return Permutation(rows, sample.seed, "subset");
}

Permutation order_of(int64_t rows, uint64_t seed, int64_t epoch) {
  return Permutation(rows, seed, "sampler", uint64_t(epoch));
}

MemberSample all_rows(uint64_t seed) {
  MemberSample sample;
  sample.seed = seed;
  return sample;
}

int64_t checked(int64_t rows, int64_t global_rows) {
  CONVOY_CHECK(rows > 0 && global_rows > 0, "a sampler of ", rows, " rows in batches of ", global_rows);
  return rows;
}

}  // namespace

RowSample::RowSample(const MemberSample& sample, int64_t rows)
    : kind_(sample.rows),
      rows_(rows),
      size_(rows_drawn(sample, rows)),
      key_(random_key(sample.seed, "bootstrap")),
      order_(order_of(sample, rows)) {
  if (kind_ != MemberSample::Rows::fold) return;
  if (sample.folds > rows)
    throw Error(Failure::config, "data.samples: ", sample.folds, " folds of ", rows,
                " rows leave some without any; give fewer folds");
  held_begin_ = sample.member % sample.folds * (rows / sample.folds);
  held_end_ = held_begin_ + rows / sample.folds;
}

int64_t RowSample::at(int64_t position) const {
  CONVOY_CHECK(0 <= position && position < size_, "position ", position, " of ", size_, " drawn rows");
  map(&position, 1);
  return position;
}

void RowSample::map(int64_t* positions, int64_t count) const {
  switch (kind_) {
    case MemberSample::Rows::all:
      return;
    case MemberSample::Rows::bootstrap:
      for (int64_t i = 0; i < count; ++i)
        positions[i] = int64_t(random_below(key_, uint64_t(positions[i]), uint64_t(rows_)));
      return;
    case MemberSample::Rows::subset:
      for (int64_t i = 0; i < count; ++i) positions[i] = order_.at(positions[i]);
      return;
    case MemberSample::Rows::fold:
      for (int64_t i = 0; i < count; ++i)
        positions[i] = order_.at(positions[i] < held_begin_ ? positions[i] : positions[i] + held_end_ - held_begin_);
      return;
  }
}

void RowSample::map_held_out(int64_t* positions, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) positions[i] = order_.at(held_begin_ + positions[i]);
}

std::optional<int64_t> uneven_rows(const MemberSample& sample, int64_t rows, int64_t global_rows, int64_t steps,
                                   int64_t shares) {
  const double drawn_of_each = static_cast<double>(rows_drawn(sample, rows)) / static_cast<double>(rows);
  const double most = static_cast<double>(steps) * static_cast<double>(global_rows) / drawn_of_each;
  for (int64_t first = most < static_cast<double>(rows) ? static_cast<int64_t>(most) : rows; first > 0; --first) {
    const int64_t drawn = rows_drawn(sample, first);
    const int64_t last = drawn % global_rows;
    if (drawn < global_rows) break;  // no full batch would remain
    const bool in_time = drawn / global_rows + 1 <= steps;
    if (in_time && last >= std::max<int64_t>(shares, 1) && (shares <= 1 || last % shares != 0)) return first;
  }
  return std::nullopt;
}

bool has_uneven_batch(int64_t rows, int64_t global_rows, int64_t steps, int64_t shares) {
  const int64_t full = rows / global_rows, last = rows % global_rows;
  return (full > 0 && global_rows % shares != 0) || (steps > full && last % shares != 0);
}

Sampler::Sampler(int64_t rows, int64_t global_rows, uint64_t seed, bool shuffle, bool drop_last)
    : Sampler(rows, global_rows, all_rows(seed)) {
  CONVOY_CHECK(!drop_last || rows >= global_rows, "no batch of ", global_rows, " rows in ", rows);
  shuffle_ = shuffle;
  drop_last_ = drop_last;
}

Sampler::Sampler(int64_t rows, int64_t global_rows, const MemberSample& sample)
    : sample_(sample, checked(rows, global_rows)),
      rows_(sample_.size()),
      global_rows_(global_rows),
      seed_(sample.seed),
      shuffle_(true) {}

int64_t Sampler::steps_per_epoch() const { return (rows_ + (drop_last_ ? 0 : global_rows_ - 1)) / global_rows_; }

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
  for (const MicroBatch& micro_batch : micro) {
    const int64_t first = offset + micro_batch.first_row;
    for (int64_t i = first; i < first + micro_batch.end - micro_batch.begin; ++i) *to++ = shuffle_ ? order.at(i) : i;
  }
  sample_.map(out, to - out);
}

}  // namespace convoy
