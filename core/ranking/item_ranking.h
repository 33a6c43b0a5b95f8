// ItemRanking: ranks all items for blocks of rows, with a PairScorer.
//
// Terms of items are computed once and kept up to a limit of bytes; the others are computed again for each batch of
// rows. Other memory: the terms of one block of items, and one block of scores for each thread.
// Threads: one caller; it uses the intra-op threads.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/ranking/pair_scorer.h"

namespace convoy {

// TopItems: the k best items of each row, from scores that arrive in blocks. It does not sort the rest.
//
// Higher scores are better; with equal scores, the smaller id is first. A score that is NaN is never taken.
// Threads: several may offer different rows at once.
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

class ItemRanking {
 public:
  static constexpr int64_t default_cache = int64_t{128} << 20;  // bytes

  // Ids of items are 0 … items − 1. `features`: [items, F] or undefined.
  ItemRanking(PairScorer& scorer, int64_t items, at::Tensor features = {}, int64_t cache_bytes = default_cache);

  // Sorted ids of items that a row's list leaves out.
  using Seen = std::pair<const int32_t*, const int32_t*>;

  // Scores [B, items] of all items.
  at::Tensor scores(const Batch& rows);
  // The k best items of each row. `seen`: one for each row, or empty. `progress` receives the number of items scored,
  // after each block of them, on the caller's thread.
  TopItems best(const Batch& rows, int64_t k, const std::vector<Seen>& seen = {},
                const std::function<void(int64_t items)>& progress = nullptr);

 private:
  struct ItemBlock {
    int64_t first = 0, items = 0;
    TensorList terms;
  };
  // Receives the scores of `rows` rows starting at `row`, with `items` items starting at `first`.
  using Visit = std::function<void(int64_t row, int64_t first, const at::Tensor& scores)>;
  void visit_blocks(const Batch& rows, const Visit& visit,
                    const std::function<void(int64_t items)>& progress = nullptr);
  ItemBlock item_block(int64_t index);
  ItemBlock computed_block(int64_t index);

  PairScorer& scorer_;
  const int64_t items_;
  const at::Tensor features_;
  int64_t cache_left_;
  std::vector<ItemBlock> cached_;  // the first ones
};

// Scores [B, N] of an evaluation batch that ranks all items (data.ranking: full), in the order of its field `item`.
// Undefined for other batches: without the field `excluded`, with ids not below N, or with features of an item that
// differ between rows.
at::Tensor full_ranking_scores(PairScorer& scorer, const Batch& batch);

}  // namespace convoy
