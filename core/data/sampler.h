// Sampler: the rows of global batch t. A pure function of (row sample, epoch, step), independent of world size and
// strategy. So resuming is arithmetic. Each member of an ensemble has a separate sampler.
#pragma once
#include <ATen/core/Tensor.h>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/ensemble_members.h"
#include "core/base/random_keys.h"
#include "core/batch.h"

namespace convoy {

// A pseudo-random permutation of 0 … rows−1; each element is computed alone. Pure, copyable, thread-safe.
//
// A Feistel network over the smallest power of two with room for all rows. Values outside are permuted again until they
// are inside (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). This takes fewer
// than two rounds on average.
class Permutation {
 public:
  // rows ≥ 1; different (seed, name, number) give unrelated permutations.
  Permutation(int64_t rows, uint64_t seed, std::string_view name, uint64_t number = 0) : rows_(uint64_t(rows)) {
    int bits = 2;
    while (bits < 63 && (uint64_t(1) << bits) < rows_) ++bits;
    low_bits_ = bits / 2;
    high_bits_ = bits - low_bits_;
    for (int round = 0; round < rounds; ++round) keys_[round] = random_key(seed, name, number, uint64_t(round));
  }

  // Returns the row at `position`; both are in [0, rows).
  int64_t at(int64_t position) const {
    uint64_t value = uint64_t(position);
    do {
      value = once(value);
    } while (value >= rows_);
    return int64_t(value);
  }

 private:
  static constexpr int rounds = 6;  // even, so that halves of unequal width end in their original order

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

// RowSample: the rows of a split that a MemberSample reads, and those that its fold holds out. Each row is computed
// alone, so resuming is arithmetic and members need no tables. Pure, copyable, thread-safe.
class RowSample {
 public:
  // Error(config) if there are more folds than `rows`.
  RowSample(const MemberSample& sample, int64_t rows);

  int64_t size() const { return size_; }  // rows in the sample
  int64_t rows() const { return rows_; }  // rows to sample from
  int64_t at(int64_t position) const;     // the row at a position, 0 … size()−1; a bootstrap repeats some
  // Replaces positions by rows, in place.
  void map(int64_t* positions, int64_t count) const;

  int64_t held_out() const { return held_end_ - held_begin_; }  // rows of the held-out fold; 0 without folds
  void map_held_out(int64_t* positions, int64_t count) const;   // in place: 0 … held_out()−1 become rows

 private:
  MemberSample::Rows kind_;
  int64_t rows_;
  int64_t size_;
  int64_t held_begin_ = 0, held_end_ = 0;  // positions in the permutation
  uint64_t key_;                           // bootstrap
  Permutation order_;                      // subset and folds
};

// Returns the largest number of rows to sample from, at most `rows`, with these properties: an epoch has at most
// `steps` steps, at least one full global batch, and a smaller last one. Each of the `shares` ranks gets a row of the
// last batch; if there are several ranks, their numbers of rows in it differ. nullopt if no number has all properties.
std::optional<int64_t> uneven_rows(const MemberSample& sample, int64_t rows, int64_t global_rows, int64_t steps,
                                   int64_t shares);
// True if one of the first `steps` batches of an epoch with `rows` rows gives `shares` ranks different numbers of rows.
bool has_uneven_batch(int64_t rows, int64_t global_rows, int64_t steps, int64_t shares);

class Sampler {
 public:
  // `rows`: rows of the training split; `global_rows`: rows of a full global batch. The last batch of an epoch may be
  // smaller, never empty; `drop_last` leaves a smaller one out.
  Sampler(int64_t rows, int64_t global_rows, uint64_t seed, bool shuffle = true, bool drop_last = false);
  // Samples the rows of a MemberSample, shuffled by its seed.
  Sampler(int64_t rows, int64_t global_rows, const MemberSample& sample);

  int64_t steps_per_epoch() const;
  int64_t epoch_of(int64_t step) const;  // step counts from 0 over the whole training
  int64_t rows_of(int64_t step) const;   // rows of the step's global batch
  // Returns row indices of share `index` of `count` of global batch `step`: int64, CPU. The shares of a step are
  // contiguous ranges of the global batch; their sizes differ by at most one.
  at::Tensor indices(int64_t step, int64_t index, int64_t count) const;
  // Does the same for a share of several micro-batches, from micro_batches_of.
  at::Tensor indices(int64_t step, const std::vector<MicroBatch>& micro) const;
  // Writes them into the caller's memory, with room up to the end of the last micro-batch.
  void write_indices(int64_t step, const std::vector<MicroBatch>& micro, int64_t* out) const;
  const RowSample& row_sample() const { return sample_; }

 private:
  RowSample sample_;
  int64_t rows_;  // rows of the sample
  int64_t global_rows_;
  uint64_t seed_;
  bool shuffle_;
  bool drop_last_ = false;
};

}  // namespace convoy
