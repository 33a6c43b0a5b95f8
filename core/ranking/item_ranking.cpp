#include "core/ranking/item_ranking.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace convoy {
namespace {

constexpr int64_t most_moved = 64;  // largest k with one insertion per score; longer lists merge a block at once

// For long lists: sorts the scores of the block that belong into the list, and merges both once.
template <class T>
void merge_block(const TopItems& top, int64_t row, int64_t first, const T* block, int64_t n) {
  const int64_t k = top.items.size(1);
  int64_t* const ids = top.items.mutable_data_ptr<int64_t>() + row * k;
  T* const scores = top.scores.mutable_data_ptr<T>() + row * k;
  int64_t& count = top.counts.mutable_data_ptr<int64_t>()[row];
  using Entry = std::pair<T, int64_t>;
  const auto above = [](const Entry& a, const Entry& b) { return a.first > b.first; };
  std::vector<Entry> found;
  for (int64_t i = 0; i < n; ++i)
    if (block[i] == block[i] && (count < k || block[i] > scores[k - 1])) found.emplace_back(block[i], first + i);
  if (found.empty()) return;
  std::stable_sort(found.begin(), found.end(), above);
  // Equal scores stay in front: their ids are smaller.
  const int64_t index =
      std::upper_bound(scores, scores + count, found.front().first, [](T a, T b) { return a > b; }) - scores;
  std::vector<Entry> lower, merged;
  for (int64_t i = index; i < count; ++i) lower.emplace_back(scores[i], ids[i]);
  merged.reserve(lower.size() + found.size());
  std::merge(lower.begin(), lower.end(), found.begin(), found.end(), std::back_inserter(merged), above);
  count = std::min(k, index + static_cast<int64_t>(merged.size()));
  for (int64_t i = index; i < count; ++i) std::tie(scores[i], ids[i]) = merged[static_cast<size_t>(i - index)];
}

template <class T>
void offer_block(const TopItems& top, int64_t row, int64_t first, const T* block, int64_t n) {
  const int64_t k = top.items.size(1);
  if (k > most_moved) return merge_block(top, row, first, block, n);
  int64_t* const ids = top.items.mutable_data_ptr<int64_t>() + row * k;
  T* const scores = top.scores.mutable_data_ptr<T>() + row * k;
  int64_t& count = top.counts.mutable_data_ptr<int64_t>()[row];
  const auto insert = [&](int64_t id, T score) {
    if (score != score || (count == k && !(score > scores[k - 1]))) return;
    // Equal scores stay in front: their ids are smaller.
    const int64_t index = std::upper_bound(scores, scores + count, score, [](T a, T b) { return a > b; }) - scores;
    count = std::min(count + 1, k);
    std::copy_backward(scores + index, scores + count - 1, scores + count);
    std::copy_backward(ids + index, ids + count - 1, ids + count);
    scores[index] = score;
    ids[index] = id;
  };
  for (int64_t i = 0; i < n; ++i) insert(first + i, block[i]);
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

ItemRanking::ItemRanking(PairScorer& scorer, int64_t items, at::Tensor features, int64_t cache_bytes)
    : scorer_(scorer), items_(items), features_(std::move(features)), cache_left_(cache_bytes) {
  CONVOY_CHECK(!features_.defined() || features_.size(0) == items_, "features of other items");
}

ItemRanking::ItemBlock ItemRanking::computed_block(int64_t index) {
  const int64_t first = index * scorer_.blocks().items;
  const int64_t count = std::min(scorer_.blocks().items, items_ - first);
  const at::Tensor ids = at::arange(first, first + count, at::TensorOptions(at::kLong));
  return {first, count,
          scorer_.item_terms(ids, features_.defined() ? features_.narrow(0, first, count) : at::Tensor())};
}

ItemRanking::ItemBlock ItemRanking::item_block(int64_t index) {
  if (index < int64_t(cached_.size())) return cached_[size_t(index)];
  ItemBlock block = computed_block(index);
  int64_t bytes = 0;
  for (const at::Tensor& term : block.terms)
    if (term.defined()) bytes += int64_t(term.nbytes());
  if (index == int64_t(cached_.size()) && bytes <= cache_left_) {
    cache_left_ -= bytes;
    cached_.push_back(block);
  } else {
    cache_left_ = 0;
  }
  return block;
}

void ItemRanking::visit_blocks(const Batch& rows, const Visit& visit,
                               const std::function<void(int64_t items)>& progress) {
  at::NoGradGuard no_grad;
  if (rows.rows == 0) return;
  const PairScorer::Blocks sizes = scorer_.blocks();
  const TensorList terms = scorer_.row_terms(rows);
  // Each thread gets rows, even of a small batch.
  const int64_t threads = sizes.threads ? at::get_num_threads() : 1;
  const int64_t together = std::min(sizes.rows, (rows.rows + threads - 1) / threads);
  std::vector<TensorList> row_ranges;
  for (int64_t begin = 0; begin < rows.rows; begin += together) {
    row_ranges.emplace_back();
    for (const at::Tensor& term : terms)
      row_ranges.back().push_back(term.defined() ? term.narrow(0, begin, std::min(together, rows.rows - begin)) : term);
  }
  std::vector<at::Tensor> memory(static_cast<size_t>(threads));
  for (at::Tensor& block : memory)
    block = at::empty({together * std::min(sizes.items, items_)}, at::TensorOptions(scorer_.dtype()));

  const int64_t blocks = (items_ + sizes.items - 1) / sizes.items;
  for (int64_t index = 0; index < blocks; ++index) {
    const ItemBlock items = item_block(index);
    const auto score = [&](int64_t from, int64_t to) {
      at::NoGradGuard thread_no_grad;
      const size_t thread = sizes.threads ? size_t(at::get_thread_num()) : 0;
      for (int64_t range = from; range < to; ++range) {
        const int64_t begin = range * together, count = std::min(together, rows.rows - begin);
        const at::Tensor block = memory[thread].narrow(0, 0, count * items.items).view({count, items.items});
        scorer_.scores(row_ranges[size_t(range)], items.terms, block);
        visit(begin, items.first, block);
      }
    };
    if (sizes.threads)
      at::parallel_for(0, int64_t(row_ranges.size()), 1, score);
    else
      score(0, int64_t(row_ranges.size()));
    if (progress) progress(items.first + items.items);
  }
}

at::Tensor ItemRanking::scores(const Batch& rows) {
  at::Tensor all = at::empty({rows.rows, items_}, at::TensorOptions(scorer_.dtype()));
  visit_blocks(rows, [&](int64_t row, int64_t first, const at::Tensor& block) {
    all.narrow(0, row, block.size(0)).narrow(1, first, block.size(1)).copy_(block);
  });
  return all;
}

TopItems ItemRanking::best(const Batch& rows, int64_t k, const std::vector<Seen>& seen,
                           const std::function<void(int64_t items)>& progress) {
  CONVOY_CHECK(seen.empty() || int64_t(seen.size()) == rows.rows, "items seen by other rows");
  TopItems top(rows.rows, std::min(k, items_), scorer_.dtype());
  visit_blocks(
      rows,
      [&](int64_t row, int64_t first, const at::Tensor& block) {
        AT_DISPATCH_FLOATING_TYPES(block.scalar_type(), "best_items", [&] {
          const int64_t count = block.size(1);
          scalar_t* scores = block.mutable_data_ptr<scalar_t>();
          for (int64_t r = 0; r < block.size(0); ++r, scores += count) {
            if (!seen.empty()) {
              const auto [from, to] = seen[size_t(row + r)];
              for (const int32_t* id = std::lower_bound(from, to, first); id != to && *id < first + count; ++id)
                scores[*id - first] = std::numeric_limits<scalar_t>::quiet_NaN();
            }
            top.offer(row + r, first, scores, count);
          }
        });
      },
      progress);
  return top;
}

at::Tensor full_ranking_scores(PairScorer& scorer, const Batch& batch) {
  const at::Tensor *const excluded = batch.find("excluded"), *const item = batch.find("item");
  if (excluded == nullptr || item == nullptr || item->dim() != 2 || item->numel() == 0 ||
      item->sizes() != excluded->sizes())
    return {};
  const int64_t items = item->size(1);
  if (item->min().item<int64_t>() < 0 || item->max().item<int64_t>() >= items) return {};
  at::Tensor features;
  if (const at::Tensor* each = batch.find("item_features")) {
    features = at::zeros({items, each->size(-1)}, each->options());
    features.index_copy_(0, item->select(0, 0), each->select(0, 0));
    for (int64_t row = 0; row < item->size(0); ++row)
      if (!at::equal(features.index_select(0, item->select(0, row)), each->select(0, row))) return {};
  }
  return ItemRanking(scorer, items, features).scores(batch).gather(1, *item);
}

}  // namespace convoy
