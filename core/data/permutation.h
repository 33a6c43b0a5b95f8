// A pseudo-random permutation of 0 … rows−1 of which any element is computed alone. Pure, copyable, thread-safe.
//
// A Feistel network over the smallest power of two that holds all rows; what falls outside walks on along its cycle until
// it is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): fewer than two turns on average.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/random_keys.h"

namespace convoy {

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

  int64_t at(int64_t position) const {
    uint64_t value = uint64_t(position);
    do {
      value = once(value);
    } while (value >= rows_);
    return int64_t(value);
  }

 private:
  static constexpr int rounds = 6;  // even, so that halves of unequal width are back in their places

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

}  // namespace convoy
