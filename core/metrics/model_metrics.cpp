// Finds a rank by comparisons and sums, without sorting.
#include "core/metrics/model_metrics.h"

#include <ATen/ops/log2.h>
#include <ATen/ops/ones_like.h>

#include <limits>

#include "core/base/error.h"
#include "core/base/text.h"

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
                "; let its last block return one score for each item, or take data.ranking: sampled");
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

}  // namespace convoy
