// Finds a rank by comparisons and sums, without sorting.
#include "core/metrics/model_metrics.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/ranking/item_ranking.h"

namespace convoy {
namespace {

bool one_for_each(const at::Tensor& numbers, const at::Tensor& items) {
  return numbers.defined() && numbers.is_floating_point() && numbers.dim() >= items.dim() &&
         numbers.sizes().slice(static_cast<size_t>(numbers.dim() - items.dim())) == items.sizes();
}

std::string shapes_of(const TensorList& tensors) {
  std::vector<std::string> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(convoy::str(tensor.sizes()));
  return join(shapes, ", ");
}

}  // namespace

at::Tensor rank_of_first(const at::Tensor& scores) {
  const at::Tensor held_out_score = scores.narrow(-1, 0, 1);
  // "Not below" counts ties and NaN on either side against the held-out item.
  return scores.narrow(-1, 1, scores.size(-1) - 1).lt(held_out_score).logical_not().sum(-1);
}

TensorList scores_of_new_items(const TensorList& outputs, const Batch& batch) {
  const at::Tensor* excluded = batch.find("excluded");
  if (excluded == nullptr) return outputs;
  TensorList scores = outputs;
  bool found = false;
  for (at::Tensor& score : scores) {
    if (!one_for_each(score, *excluded)) continue;
    score = score.masked_fill(*excluded, -std::numeric_limits<double>::infinity());
    found = true;
  }
  if (!found)
    throw Error(Failure::config, "data.ranking: full leaves out the items that a user has, by their scores of shape ",
                excluded->sizes(), "; the model's outputs have ", shapes_of(outputs),
                "; let its last block return one score for each item, or set data.ranking: sampled");
  return scores;
}

Examples examples_of_new_items(Examples examples, const Batch& batch) {
  const at::Tensor* excluded = batch.find("excluded");
  if (excluded == nullptr || !one_for_each(examples.prediction, *excluded)) return examples;
  const at::Tensor counted = excluded->logical_not().to(examples.prediction.scalar_type());
  at::Tensor& weight = examples.weight;
  if (!weight.defined())
    weight = counted;
  else
    weight = (weight.dim() < examples.prediction.dim() ? weight.unsqueeze(-1) : weight) * counted;
  return examples;
}

std::vector<Metric> ranking_metrics(const at::Tensor& rank, const std::vector<int64_t>& ks) {
  const at::Tensor gain = at::log2(rank.to(at::kDouble) + 2).reciprocal();
  const at::Tensor rows = at::ones_like(gain).sum(-1);
  std::vector<Metric> metrics;
  for (int64_t k : ks) {
    const at::Tensor hit = rank.lt(k).to(at::kDouble);
    metrics.push_back({str("hr@", k), hit.sum(-1), rows});
    metrics.push_back({str("ndcg@", k), (hit * gain).sum(-1), rows});
  }
  return metrics;
}

Metric accuracy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight, Layers& layers) {
  const at::Tensor hit = layers.target_rank(logits, target).eq(0).to(at::kDouble);
  const at::Tensor each = weight.defined() ? weight.to(at::kDouble).expand_as(hit) : at::ones_like(hit);
  return {"accuracy", (hit * each).sum(-1), each.sum(-1)};
}

// Metrics of rankings with one or several held-out items per row.

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Ranks of held-out items and what follows from them, per row.
class HeldOutRanks {
 public:
  // ranks [.., B, P]; held_out [B] or [.., B].
  HeldOutRanks(at::Tensor ranks, const at::Tensor& held_out)
      : ranks_(std::move(ranks)), held_out_(held_out.to(at::kDouble)) {
    const at::Tensor real_ranks = ranks_.to(at::kDouble);
    gain_ = at::log2(real_ranks + 2).reciprocal();
    number_ = at::arange(1, ranks_.size(-1) + 1, real_ranks.options());
    precision_ = number_ / (real_ranks + 1);
    best_gain_ = at::log2(number_ + 1).reciprocal().cumsum(0);
  }

  // [.., B]
  at::Tensor value(const std::string& name, int64_t k) const {
    const at::Tensor hit = (ranks_.lt(k) & number_.le(held_out_.unsqueeze(-1))).to(at::kDouble);
    const at::Tensor first = hit.select(-1, 0);
    if (name == "hr") return first;
    if (name == "recall") return hit.sum(-1) / held_out_;
    if (name == "precision") return hit.sum(-1) / double(k);
    if (name == "mrr") return first / (ranks_.select(-1, 0).to(at::kDouble) + 1);
    const at::Tensor most = held_out_.clamp_max(double(k));
    if (name == "map") return (hit * precision_).sum(-1) / most;
    CONVOY_CHECK(name == "ndcg", "no ranking metric '", name, "'");
    const at::Tensor index = most.to(at::kLong) - 1;
    return (hit * gain_).sum(-1) / best_gain_.index_select(0, index.reshape(-1)).view_as(index);
  }

 private:
  at::Tensor ranks_, held_out_;
  at::Tensor gain_, precision_;    // by held-out item: its contribution if it is a hit
  at::Tensor number_, best_gain_;  // [P]: n = 1, 2, …; the largest sum of n gains
};

// Returns the ids of the k best items: scores [B, N] by id → int64 [B, k]. Items with a score of −∞ do not count;
// −1 where there are fewer than k items. On the CPU the smaller of two ids with equal scores is first.
at::Tensor best_ids(const at::Tensor& scores, int64_t k) {
  if (!scores.is_cpu()) {
    const auto [values, ids] = scores.topk(k, -1);
    return ids.masked_fill(values.eq(-infinity) | values.isnan(), -1);
  }
  const at::Tensor plain = scores.contiguous();
  TopItems top(scores.size(0), k, scores.scalar_type());
  AT_DISPATCH_FLOATING_TYPES(plain.scalar_type(), "best_ids", [&] {
    const scalar_t* from = plain.const_data_ptr<scalar_t>();
    const int64_t items = plain.size(1);
    at::parallel_for(0, plain.size(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) top.offer(row, 0, from + row * items, items);
    });
  });
  return top.items.masked_fill(top.scores.eq(-infinity), -1);
}

// How often each item is among the k best, for each k: [.., N].
std::vector<at::Tensor> recommended(const at::Tensor& scores, const Batch& batch, const std::vector<int64_t>& ks) {
  const at::Tensor* item = batch.find("item");
  const bool all = batch.find("excluded") != nullptr && item != nullptr &&
                   (item->sizes() == scores.sizes() || item->sizes() == scores.sizes().slice(scores.dim() - 2));
  if (!all)
    throw Error(Failure::config,
                "coverage and gini count the best of all items; set data.ranking: full, or leave them out of "
                "model.metrics");
  const int64_t items = scores.size(-1), rows = scores.size(-2);
  const at::Tensor order = item->expand(scores.sizes());
  const at::Tensor by_id = at::full_like(scores, -infinity).scatter(-1, order, scores).reshape({-1, items});
  const int64_t most = std::min(items, *std::max_element(ks.begin(), ks.end()));
  const at::Tensor ids = best_ids(by_id, most).view({-1, rows, most});
  std::vector<at::Tensor> counts;
  for (const int64_t k : ks) {
    const at::Tensor lists = ids.narrow(-1, 0, std::min(k, items)).reshape({ids.size(0), -1});
    // Element 0 counts missing items.
    at::Tensor count = at::zeros({ids.size(0), items + 1}, scores.options().dtype(at::kDouble));
    count.scatter_add_(-1, lists + 1, at::ones(lists.sizes(), count.options()));
    count = count.narrow(-1, 1, items);
    counts.push_back(scores.dim() == 2 ? count.select(0, 0) : count);
  }
  return counts;
}

bool counts_items(const std::string& name) { return name == "coverage" || name == "gini"; }

}  // namespace

at::Tensor ranks_of_held_out(const at::Tensor& scores, const at::Tensor& held_out) {
  const int64_t items = scores.size(-1);
  const int64_t most = held_out.numel() == 0 ? 1 : std::max<int64_t>(1, held_out.max().item<int64_t>());
  if (most == 1) return rank_of_first(scores).unsqueeze(-1);
  const at::Tensor valid = at::arange(most, held_out.options()).lt(held_out.unsqueeze(-1));  // [B, P]
  const at::Tensor first = scores.narrow(-1, 0, most);
  const at::Tensor held_out_scores = at::where(valid & first.isnan().logical_not(), first, -infinity);
  const at::Tensor sorted = std::get<0>(held_out_scores.sort(-1)).contiguous();  // the worst first

  // A NaN ranks first.
  const at::Tensor others = at::where(scores.isnan(), infinity, scores).contiguous();
  const at::Tensor is_held_out = at::arange(items, held_out.options()).lt(held_out.unsqueeze(-1));
  // For each other item: the number of held-out items that it passes, those without a higher score. Then `numbers`
  // counts the other items by this number.
  const at::Tensor passed = at::searchsorted(sorted, others, false, /*right=*/true);
  std::vector<int64_t> shape = sorted.sizes().vec();
  shape.back() = most + 1;
  at::Tensor numbers = at::zeros(shape, passed.options());
  numbers.scatter_add_(-1, passed, is_held_out.logical_not().to(at::kLong).expand_as(passed));
  const at::Tensor upwards = numbers.flip(-1).cumsum(-1);  // others above the best held-out item come first
  const at::Tensor above = upwards.narrow(-1, 0, most);    // [.., B, P], best held-out item first
  const at::Tensor ranks = above + at::arange(most, above.options());
  return at::where(valid, ranks, items);
}

std::vector<Metric> ranking_metrics(const at::Tensor& scores, const Batch& batch, const std::vector<std::string>& names,
                                    const std::vector<int64_t>& ks) {
  const at::Tensor* counts = batch.find("held_out");
  const at::Tensor held_out = counts != nullptr ? *counts : at::ones({batch.rows}, scores.options().dtype(at::kLong));
  const HeldOutRanks ranks(ranks_of_held_out(scores, held_out), held_out);
  const bool lists = std::any_of(names.begin(), names.end(), counts_items);
  const std::vector<at::Tensor> recommendations = lists ? recommended(scores, batch, ks) : std::vector<at::Tensor>();
  std::vector<Metric> metrics;
  for (size_t i = 0; i < ks.size(); ++i)
    for (const std::string& name : names) {
      const at::Tensor each = ranks.value(counts_items(name) ? "hr" : name, ks[i]);
      Metric metric{str(name, "@", ks[i]), each.sum(-1), at::ones_like(each).sum(-1)};
      if (counts_items(name)) {
        metric.sum = recommendations[i];
        metric.form = name == "gini" ? Metric::Form::gini : Metric::Form::coverage;
        metric.lower_is_better = name == "gini";
      }
      metrics.push_back(std::move(metric));
    }
  return metrics;
}

}  // namespace convoy
