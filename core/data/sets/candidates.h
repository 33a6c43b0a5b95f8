// Draws items that a user has not touched: negatives for training, candidates for evaluation. Pure functions of key and
// counter, so a row does not depend on the rank that assembles it.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensors/tensor_memory.h"

namespace convoy {

// Positives: the items of each user; membership in a few nanoseconds, and a user's sorted list.
//
// Bits answer most queries. They are exact if users × items is small. Otherwise each user has a blocked Bloom filter
// (Putze, Sanders and Singler, 2007) of 16 bits per item, in one to two cache lines for most users, and a binary search
// in the user's list confirms a hit. Const after construction, thread-safe.
class Positives {
 public:
  Positives() = default;
  // Adds the pairs (user[r], item[r]) for each r in rows; ids are below users and items.
  Positives(int64_t users, int64_t items, const int32_t* user, const int32_t* item, const std::vector<int32_t>& rows);

  bool contains(int32_t user, int32_t item) const {
    const Bits bits = bits_of(user, item);
    return (words_[bits.word] & bits.mask) == bits.mask && (exact_ || listed(user, item));
  }
  // Prefetches memory for coming queries: first the position of the user's list, some queries later the words of an
  // item.
  void prefetch(int32_t user) const { __builtin_prefetch(&begin_[size_t(user)]); }
  void prefetch(int32_t user, int32_t item) const { __builtin_prefetch(&words_[bits_of(user, item).word]); }
  // Returns the user's items, sorted, each once: [first, second).
  std::pair<const int32_t*, const int32_t*> of(int32_t user) const {
    return {list_.data() + begin_[size_t(user)], list_.data() + begin_[size_t(user)] + count_[size_t(user)]};
  }
  int64_t count(int32_t user) const { return count_[size_t(user)]; }
  // Returns item number `position` of those that the user has not touched; position < items − count(user).
  int32_t missing(int32_t user, int64_t position) const;

 private:
  struct Bits {
    size_t word;
    uint64_t mask;
  };
  static constexpr uint64_t items_a_word = 4;
  Bits bits_of(int32_t user, int32_t item) const {
    if (exact_) {
      const uint64_t bit = uint64_t(user) * uint64_t(items_) + uint64_t(item);
      return {size_t(bit >> 6), uint64_t(1) << (bit & 63)};
    }
    const uint64_t begin = first_word(user), words = first_word(user + 1) - begin;
    const uint64_t hash = (uint64_t(uint32_t(item)) + 1) * 0x9E3779B97F4A7C15u;
    return {size_t(begin + ((hash >> 32) * words >> 32)),
            uint64_t(1) << (hash >> 14 & 63) | uint64_t(1) << (hash >> 20 & 63) | uint64_t(1) << (hash >> 26 & 63)};
  }
  // At least one word for each user.
  uint64_t first_word(int32_t user) const {
    return uint64_t(begin_[size_t(user)]) / items_a_word + uint64_t(uint32_t(user));
  }
  bool listed(int32_t user, int32_t item) const;

  int64_t items_ = 0;
  bool exact_ = true;
  HugePageVector<uint64_t> words_;
  HugePageVector<int64_t> begin_;  // per user, into list_
  HugePageVector<int32_t> count_;  // per user, without duplicates
  HugePageVector<int32_t> list_;
};

// Draws `count` items uniformly from those that are not positives of the user, with repeats; keyed by (key, sample).
void draw_negatives(const Positives& positives, int64_t items, int32_t user, uint64_t key, uint64_t sample,
                    int64_t count, int64_t* out);

// Does the same for `rows` samples at once, into out[r * stride]. Prefetches memory some samples ahead, because
// look-ups are random accesses.
void draw_negatives(const Positives& positives, int64_t items, const int64_t* users, uint64_t key,
                    const int64_t* samples, int64_t rows, int64_t count, int64_t* out, int64_t stride);

// Draws distinct items, without the user's positives and the held-out item; keyed by (key, user).
class Candidates {
 public:
  Candidates(const Positives& positives, int64_t items, int64_t count, uint64_t key);
  void draw(int32_t user, int32_t held_out, int64_t* out);  // writes `count` items

 private:
  bool insert(int32_t item);  // returns false if this call of `draw` has the item already
  void draw_from_list(int32_t user, int32_t held_out, int64_t* out) const;

  const Positives& positives_;
  const int64_t items_;
  const int64_t count_;
  const uint64_t key_;
  std::vector<uint64_t> seen_;  // hash table of (call of `draw`, item); entries of earlier calls are free
  uint64_t calls_ = 0;
};

// Writes all items to out [items]: first the held-out items, which are sorted, then all others in ascending order.
// `excluded` [items] is true for the user's positives, but never for a held-out item.
void all_items(const Positives& positives, int64_t items, int32_t user, const std::vector<int32_t>& held_out,
               int64_t* out, bool* excluded);

}  // namespace convoy
