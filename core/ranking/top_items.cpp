#include "core/ranking/top_items.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "core/tensors/vectorised.h"

namespace convoy {
namespace {

constexpr int64_t scanned = 64;  // scores that are compared with the worst of the list at once

CONVOY_BODY bool any_above_body(const T* __restrict scores, T bound) {
  int found = 0;
  for (int64_t i = 0; i < scanned; ++i) found |= scores[i] > bound ? 1 : 0;
  return found != 0;
}

CONVOY_VECTORISED bool any_above(const float* scores, float bound) { return any_above_body(scores, bound); }
CONVOY_VECTORISED bool any_above(const double* scores, double bound) { return any_above_body(scores, bound); }

template <class T>
void offer_block(const TopItems& top, int64_t row, int64_t first, const T* block, int64_t n) {
  const int64_t k = top.items.size(1);
  int64_t* const ids = top.items.mutable_data_ptr<int64_t>() + row * k;
  T* const scores = top.scores.mutable_data_ptr<T>() + row * k;
  int64_t& count = top.counts.mutable_data_ptr<int64_t>()[row];
  const auto insert = [&](int64_t id, T score) {
    if (score != score || (count == k && !(score > scores[k - 1]))) return;
    // Equal scores stay in front: their ids are smaller.
    int64_t place = std::upper_bound(scores, scores + count, score, [](T a, T b) { return a > b; }) - scores;
    count = std::min(count + 1, k);
    std::copy_backward(scores + place, scores + count - 1, scores + count);
    std::copy_backward(ids + place, ids + count - 1, ids + count);
    scores[place] = score;
    ids[place] = id;
  };
  for (int64_t begin = 0; begin < n; begin += scanned) {
    const int64_t end = std::min(begin + scanned, n);
    if (count == k && end - begin == scanned && !any_above(block + begin, scores[k - 1])) continue;
    for (int64_t i = begin; i < end; ++i) insert(first + i, block[i]);
  }
}

}  // namespace

TopItems::TopItems(int64_t rows, int64_t k, at::ScalarType dtype)
    : items(at::full({rows, k}, -1, at::TensorOptions(at::kLong))),
      scores(at::full({rows, k}, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(dtype))),
      counts(at::zeros({rows}, at::TensorOptions(at::kLong))) {}

void TopItems::offer(int64_t row, int64_t first, const float* block, int64_t n) {
  offer_block(*this, row, first, block, n);
}
void TopItems::offer(int64_t row, int64_t first, const double* block, int64_t n) {
  offer_block(*this, row, first, block, n);
}

}  // namespace convoy
