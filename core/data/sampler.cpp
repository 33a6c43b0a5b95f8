// Permutation by a Feistel network over the smallest power of two that holds all rows; what falls outside walks on along
// its cycle until it is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). So any element
// of any epoch's order is computed alone, and nothing is kept.
#include "core/data/sampler.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "core/batch.h"
#include "core/error.h"
#include "core/random_keys.h"

namespace convoy {
namespace {

constexpr int rounds = 6;  // even, so that the two halves, of unequal width perhaps, are back in their places

class Permutation {
 public:
  Permutation(int64_t rows, uint64_t seed, int64_t epoch) : rows_(uint64_t(rows)) {
    int bits = 2;
    while (bits < 62 && (uint64_t(1) << bits) < rows_) ++bits;
    low_bits_ = bits / 2;
    high_bits_ = bits - low_bits_;
    for (int round = 0; round < rounds; ++round) {
      keys_[round] = random_key(seed, "sampler", uint64_t(epoch), uint64_t(round));
    }
  }

  int64_t at(int64_t position) const {
    uint64_t value = uint64_t(position);
    do {
      value = once(value);
    } while (value >= rows_);
    return int64_t(value);
  }

 private:
  static uint64_t mixed(uint64_t value) {
    value *= 0xFF51AFD7ED558CCDu;
    value ^= value >> 32;
    value *= 0xC4CEB9FE1A85EC53u;
    return value >> 32 ^ value;
  }

  uint64_t once(uint64_t value) const {
    int left_bits = high_bits_;
    int right_bits = low_bits_;
    uint64_t left = value >> right_bits;
    uint64_t right = value & ((uint64_t(1) << right_bits) - 1);
    for (int round = 0; round < rounds; ++round) {
      const uint64_t next = (left ^ mixed(right + keys_[round])) & ((uint64_t(1) << left_bits) - 1);
      left = right;
      right = next;
      std::swap(left_bits, right_bits);
    }
    return left << right_bits | right;
  }

  uint64_t rows_;
  int low_bits_ = 1;
  int high_bits_ = 1;
  std::array<uint64_t, rounds> keys_;
};

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
  const auto [first, last] = share_of(rows_of(step), index, count);
  const int64_t offset = step % steps_per_epoch() * global_rows_;
  auto result = at::empty({last - first}, at::kLong);
  int64_t* out = result.mutable_data_ptr<int64_t>();
  if (!shuffle_) {
    for (int64_t i = first; i < last; ++i) *out++ = offset + i;
    return result;
  }
  const Permutation permutation(rows_, seed_, epoch_of(step));
  for (int64_t i = first; i < last; ++i) *out++ = permutation.at(offset + i);
  return result;
}

int64_t Sampler::permuted(int64_t epoch, int64_t position) const {
  CONVOY_CHECK(0 <= position && position < rows_, "position ", position, " of ", rows_, " rows");
  return shuffle_ ? Permutation(rows_, seed_, epoch).at(position) : position;
}

}  // namespace convoy
