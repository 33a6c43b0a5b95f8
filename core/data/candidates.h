// Drawing items that a user does not have: negatives for training, candidates for evaluation. Pure functions of key and
// counter, so that a row is the same whoever assembles it.
#pragma once
#include <cstdint>
#include <vector>

#include "core/data/positives.h"

namespace convoy {

// `count` items, each uniform over those that are no positive of the user (repeats are allowed); keyed by (key, sample).
void draw_negatives(const Positives& positives, int64_t items, int32_t user, uint64_t key, uint64_t sample,
                    int64_t count, int64_t* out);

// The same for `rows` samples at once, into out[r * stride]: what a draw looks up lies anywhere in memory, and is asked for some
// samples ahead.
void draw_negatives(const Positives& positives, int64_t items, const int64_t* users, uint64_t key,
                    const int64_t* samples, int64_t rows, int64_t count, int64_t* out, int64_t stride);

// Distinct items, neither a positive of the user nor the held-out item; keyed by (key, user).
class Candidates {
 public:
  Candidates(const Positives& positives, int64_t items, int64_t count, uint64_t key);
  void draw(int32_t user, int32_t held_out, int64_t* out);  // `count` of them

 private:
  bool fresh(int32_t item);  // and remembers it
  void draw_from_list(int32_t user, int32_t held_out, int64_t* out) const;

  const Positives& positives_;
  const int64_t items_;
  const int64_t count_;
  const uint64_t key_;
  std::vector<uint64_t> seen_;  // hash table of (turn, item), emptied by the next turn
  uint64_t turn_ = 0;
};

// The held-out item, then all others in order; excluded says which are positives of the user (never the held-out one).
void all_items(const Positives& positives, int64_t items, int32_t user, int32_t held_out, int64_t* out, bool* excluded);

}  // namespace convoy
