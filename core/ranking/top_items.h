// TopItems: the k best items of each row, from scores that arrive in blocks. It does not sort the rest.
//
// Higher scores are better; with equal scores, the smaller id is first. A score that is NaN is never taken.
// Threads: several may offer different rows at once.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace convoy {

struct TopItems {
  TopItems(int64_t rows, int64_t k, at::ScalarType dtype);

  // Offers items [first, first + n) with their scores [n], which are contiguous and have the dtype of `scores`. Blocks
  // of a row arrive in order of ids.
  void offer(int64_t row, int64_t first, const float* block, int64_t n);
  void offer(int64_t row, int64_t first, const double* block, int64_t n);

  at::Tensor items;   // int64 [rows, k], best first; −1: fewer than k items
  at::Tensor scores;  // [rows, k]; NaN where there is no item
  at::Tensor counts;  // int64 [rows]: items of each row
};

}  // namespace convoy
