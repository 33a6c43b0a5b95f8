// Rejection sampling with counter-based words, four per Philox block; exact selection if rejection would take long.

#include "core/data/sets/candidates.h"

#include <ATen/Parallel.h>
#include <algorithm>
#include <array>

#include "core/base/random_keys.h"

namespace convoy {

// --- Positives: counting sort by user, then sort each list, then fill the bits ---

namespace {

constexpr int64_t exact_limit = int64_t(1) << 26;  // bits, 8 MB: fits into a cache

using Words = std::array<uint32_t, 4>;

constexpr size_t ahead = 8;            // samples whose words are drawn and whose memory is prefetched
constexpr uint64_t extra_blocks = 16;  // drawn in addition, before negatives are selected directly

uint32_t scaled(uint32_t word, int64_t bound) { return uint32_t(uint64_t(word) * uint64_t(bound) >> 32); }

// `first`: the words of the sample's block 0.
void draw(const Positives& positives, int64_t items, int32_t user, uint64_t key, uint64_t sample, const Words& first,
          int64_t count, int64_t* out) {
  int64_t have = 0;
  uint64_t block = 0;
  for (; have < count && block < extra_blocks + uint64_t(count); ++block) {
    for (uint32_t word : block == 0 ? first : philox(key, sample, block)) {
      const auto item = int32_t(scaled(word, items));
      if (positives.contains(user, item)) continue;
      out[have] = item;
      if (++have == count) return;
    }
  }
  const int64_t left = items - positives.count(user);
  for (; have < count; ++block) {
    const uint32_t word = philox(key, sample, block)[0];
    out[have++] = positives.missing(user, scaled(word, left));
  }
}

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
  words_.resize(exact_ ? size_t(users * items / 64 + 1) : size_t(first_word(int32_t(users))));
  for (int64_t u = 0; u < users; ++u) {
    const auto [from, to] = of(int32_t(u));
    for (const int32_t* i = from; i != to; ++i) {
      const Bits bits = bits_of(int32_t(u), *i);
      words_[bits.word] |= bits.mask;
    }
  }
}

bool Positives::listed(int32_t user, int32_t item) const {
  const auto [from, to] = of(user);
  return std::binary_search(from, to, item);
}

int32_t Positives::missing(int32_t user, int64_t position) const {
  // The answer is position + the number of the user's items that are smaller than the answer. Bisect over that number.
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

void draw_negatives(const Positives& positives, int64_t items, int32_t user, uint64_t key, uint64_t sample,
                    int64_t count, int64_t* out) {
  if (count > 0) draw(positives, items, user, key, sample, philox(key, sample, 0), count, out);
}

void draw_negatives(const Positives& positives, int64_t items, const int64_t* users, uint64_t key,
                    const int64_t* samples, int64_t rows, int64_t count, int64_t* out, int64_t stride) {
  if (count == 0) return;
  std::array<Words, ahead> words;  // words of the next samples
  const auto ask_for = [&](int64_t r) {
    if (r + int64_t(ahead) < rows) positives.prefetch(int32_t(users[r + int64_t(ahead)]));
    Words& first = words[size_t(r) % ahead];
    first = philox(key, uint64_t(samples[r]), 0);
    for (uint32_t word : first) positives.prefetch(int32_t(users[r]), int32_t(scaled(word, items)));
  };
  for (int64_t r = 0; r < std::min<int64_t>(rows, ahead); ++r) ask_for(r);
  for (int64_t r = 0; r < rows; ++r) {
    const Words first = words[size_t(r) % ahead];
    if (r + int64_t(ahead) < rows) ask_for(r + int64_t(ahead));
    draw(positives, items, int32_t(users[r]), key, uint64_t(samples[r]), first, count, out + r * stride);
  }
}

Candidates::Candidates(const Positives& positives, int64_t items, int64_t count, uint64_t key)
    : positives_(positives), items_(items), count_(count), key_(key) {
  size_t slots = 16;
  while (slots < 4 * size_t(count)) slots *= 2;
  seen_.resize(slots);
}

bool Candidates::insert(int32_t item) {
  const uint64_t entry = calls_ << 32 | uint32_t(item);
  size_t slot = (uint64_t(uint32_t(item)) * 0x9E3779B97F4A7C15u >> 32) & (seen_.size() - 1);
  while (seen_[slot] >> 32 == calls_) {
    if (seen_[slot] == entry) return false;
    slot = (slot + 1) & (seen_.size() - 1);
  }
  seen_[slot] = entry;
  return true;
}

void Candidates::draw(int32_t user, int32_t held_out, int64_t* out) {
  if (items_ - positives_.count(user) < 4 * count_) return draw_from_list(user, held_out, out);
  ++calls_;
  int64_t have = 0;
  for (uint64_t block = 0; have < count_; ++block) {
    for (uint32_t word : philox(key_, uint64_t(user), block)) {
      const auto item = int32_t(scaled(word, items_));
      if (item == held_out || positives_.contains(user, item) || !insert(item)) continue;
      out[have] = item;
      if (++have == count_) return;
    }
  }
}

void Candidates::draw_from_list(int32_t user, int32_t held_out, int64_t* out) const {
  std::vector<int32_t> left;
  for (int32_t item = 0; item < items_; ++item) {
    if (item != held_out && !positives_.contains(user, item)) left.push_back(item);
  }
  for (int64_t i = 0; i < count_; ++i) {
    const uint32_t word = philox(key_, uint64_t(user), uint64_t(i))[0];
    const size_t other = size_t(i) + scaled(word, int64_t(left.size()) - i);
    std::swap(left[size_t(i)], left[other]);
    out[i] = left[size_t(i)];
  }
}

void all_items(const Positives& positives, int64_t items, int32_t user, const std::vector<int32_t>& held_out,
               int64_t* out, bool* excluded) {
  out = std::copy(held_out.begin(), held_out.end(), out);
  auto next = held_out.begin();
  for (int32_t item = 0; item < items; ++item) {
    if (next != held_out.end() && item == *next)
      ++next;
    else
      *out++ = item;
  }
  std::fill(excluded, excluded + items, false);
  const auto [from, to] = positives.of(user);
  for (const int32_t* i = from; i != to; ++i) {
    // Held-out items come first. So each other item moves by the number of held-out items that are larger.
    const auto above = std::lower_bound(held_out.begin(), held_out.end(), *i);
    if (above == held_out.end() || *above != *i) excluded[*i + (held_out.end() - above)] = true;
  }
}

}  // namespace convoy
