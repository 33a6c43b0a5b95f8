// Counting sort by user, then each list sorted, then the bitmap.
#include "core/data/positives.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace convoy {
namespace {

constexpr int64_t exact_limit = int64_t(1) << 26;  // bits, 8 MB: what a cache can hold
constexpr int64_t bits_per_pair = 16;              // of the hashed bitmap: one miss in sixteen is searched for in vain

}  // namespace

Positives::Positives(int64_t users, int64_t items, const int32_t* user, const int32_t* item,
                     const std::vector<int32_t>& rows)
    : items_(items), begin_(size_t(users) + 1), count_(size_t(users)), list_(rows.size()) {
  for (int32_t row : rows) ++begin_[size_t(user[row]) + 1];
  for (size_t u = 0; u < size_t(users); ++u) begin_[u + 1] += begin_[u];
  std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
  for (int32_t row : rows) list_[size_t(next[size_t(user[row])]++)] = item[row];

  at::parallel_for(0, users, 1024, [&](int64_t first, int64_t last) {
    for (int64_t u = first; u < last; ++u) {
      auto* from = list_.data() + begin_[size_t(u)];
      auto* to = list_.data() + begin_[size_t(u) + 1];
      std::sort(from, to);
      count_[size_t(u)] = int32_t(std::unique(from, to) - from);
    }
  });

  exact_ = users <= exact_limit / std::max<int64_t>(1, items);
  int64_t size = users * items;
  if (!exact_) {
    int log = 10;
    while ((int64_t(1) << log) < int64_t(rows.size()) * bits_per_pair) ++log;
    shift_ = 64 - log;
    size = int64_t(1) << log;
  }
  bits_.resize(size_t(size / 64 + 1));
  for (int64_t u = 0; u < users; ++u) {
    const auto [from, to] = of(int32_t(u));
    for (const int32_t* i = from; i != to; ++i) {
      const uint64_t bit = exact_ ? uint64_t(u * items_ + *i) : hashed(int32_t(u), *i);
      bits_[bit >> 6] |= uint64_t(1) << (bit & 63);
    }
  }
}

bool Positives::listed(int32_t user, int32_t item) const {
  const auto [from, to] = of(user);
  return std::binary_search(from, to, item);
}

int32_t Positives::missing(int32_t user, int64_t position) const {
  // The answer is position plus the number of the user's items up to it: bisect on how many of them lie below.
  const auto [from, to] = of(user);
  int64_t low = 0;
  int64_t high = to - from;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (from[middle] - middle <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return int32_t(position + low);
}

}  // namespace convoy
