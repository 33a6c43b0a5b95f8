// Metrics that models report: accuracy and ranking.
//
// Ranking metrics of the held-out item among its candidates: HR@k (1 if it is among the first k) and NDCG@k
// (1 / log2(rank + 2) if it is). Each row counts one.
#pragma once
#include <vector>

#include "core/model_interface.h"

namespace convoy {

// Returns the rank of candidate 0, from 0 for the best: scores [.., B, N] → int64 [.., B]. Ties and NaN scores count
// against it.
at::Tensor rank_of_first(const at::Tensor& scores);

// Returns "hr@k" and "ndcg@k" for each k. Sums over rows: [] or [members].
std::vector<Metric> ranking_metrics(const at::Tensor& rank, const std::vector<int64_t>& ks);

// Full ranking (data.ranking): the batch's field `excluded` [.., B, N] marks items of the user's history. The strategy
// passes each evaluation through the two functions below, so models do not handle the field. They change nothing if a
// batch has no such field.

// Changes the outputs for `Model::metrics`: the score [.., B, N] of an excluded item becomes −inf. Throws Error(config)
// if no output has one score for each item.
TensorList scores_of_new_items(const TensorList& outputs, const Batch& batch);
// Changes the result of `Model::examples`: an excluded item gets no weight in the loss.
Examples examples_of_new_items(Examples examples, const Batch& batch);

// Accuracy: the fraction of rows whose largest logit is the target's. A tie counts as an error. It uses
// Layers::target_rank, so that sharded logits need no gather.
// logits [.., B, C], target [.., B] int64; weight per row, undefined: all one. Sums over rows: [] or [members].
Metric accuracy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight, Layers& layers);

}  // namespace convoy
