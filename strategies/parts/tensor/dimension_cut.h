// How one dimension of a tensor is cut among the ranks of a tensor group. Plain data.
#pragma once
#include <cstdint>
#include <utility>

#include "core/batch.h"

namespace convoy {

struct DimensionCut {
  int64_t whole = 0;  // elements
  int64_t parts = 1;  // equal ranges of them that are cut one by one: 3 for fused queries, keys and values
  int rank = 0;       // this one
  int size = 1;       // of the group

  int64_t part() const { return whole / parts; }
  bool even() const { return part() % size == 0; }
  // [begin, end) of each part that rank `of` holds; shares differ by one at most, the first ones larger.
  std::pair<int64_t, int64_t> share(int of) const { return share_of(part(), of, size); }
  std::pair<int64_t, int64_t> share() const { return share(rank); }
  // Elements that this rank holds, of all parts.
  int64_t length() const {
    const auto [begin, end] = share();
    return parts * (end - begin);
  }
};

}  // namespace convoy
