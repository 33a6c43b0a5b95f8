// Which items each user has: membership in a few nanoseconds, and the sorted list of a user.
//
// A bitmap answers most questions: an exact one where users × items is small, else one bit per hashed pair, whose "perhaps"
// is settled by a binary search in the user's list. Const after construction, thread-safe.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/huge_pages.h"

namespace convoy {

class Positives {
 public:
  Positives() = default;
  // The pairs (user[r], item[r]) for each r in rows; ids are below users and items.
  Positives(int64_t users, int64_t items, const int32_t* user, const int32_t* item, const std::vector<int32_t>& rows);

  bool contains(int32_t user, int32_t item) const {
    const uint64_t bit = bit_of(user, item);
    if ((bits_[bit >> 6] >> (bit & 63) & 1) == 0) return false;
    return exact_ || listed(user, item);
  }
  // Soon they will be asked for: the bitmap's word, and where the user's list is found.
  void prefetch(int32_t user, int32_t item) const { __builtin_prefetch(&bits_[bit_of(user, item) >> 6]); }
  void prefetch(int32_t user) const {
    __builtin_prefetch(&begin_[size_t(user)]);
    __builtin_prefetch(&count_[size_t(user)]);
  }
  // Sorted, each once: [first, second).
  std::pair<const int32_t*, const int32_t*> of(int32_t user) const {
    return {list_.data() + begin_[size_t(user)], list_.data() + begin_[size_t(user)] + count_[size_t(user)]};
  }
  int64_t count(int32_t user) const { return count_[size_t(user)]; }
  // Item number `position` among those the user does not have; position < items − count(user).
  int32_t missing(int32_t user, int64_t position) const;

 private:
  uint64_t bit_of(int32_t user, int32_t item) const {
    return exact_ ? uint64_t(user) * uint64_t(items_) + uint64_t(item) : hashed(user, item);
  }
  uint64_t hashed(int32_t user, int32_t item) const {
    const uint64_t pair = uint64_t(uint32_t(user)) << 32 | uint32_t(item);
    return (pair * 0x9E3779B97F4A7C15u ^ (pair >> 29)) * 0xBF58476D1CE4E5B9u >> shift_;
  }
  bool listed(int32_t user, int32_t item) const;

  int64_t items_ = 0;
  bool exact_ = true;
  int shift_ = 63;
  LookUpVector<uint64_t> bits_;
  LookUpVector<int64_t> begin_;  // per user, into list_
  LookUpVector<int32_t> count_;  // per user, after duplicates were dropped
  LookUpVector<int32_t> list_;
};

}  // namespace convoy
