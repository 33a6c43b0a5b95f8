// Metrics that models report: accuracy and ranking.
//
// A row has scores of one or several held-out items and, at the following positions, of other items. A metric measures
// how high the held-out items rank. Ties and NaN scores count against them. Per row, with h held-out items; `hits` of
// them are among the first k:
//   hr         1 if hits > 0                   recall      hits / h
//   precision  hits / k                        mrr         1 / (rank + 1) of the best one if it is a hit
//   ndcg       Σ 1/log2(rank + 2) over hits, divided by its largest value
//   map        Σ (hits so far) / (rank + 1) over hits, divided by min(h, k)
// Over the lists of the k best items of all rows: coverage, the share of items that are in a list; gini, the Gini index
// of the number of lists that contain an item.
#pragma once
#include <string>
#include <vector>

#include "core/model_interface.h"

namespace convoy {

// Returns the rank of candidate 0, from 0 for the best: scores [.., B, N] → int64 [.., B]. Ties and NaN scores count
// against it.
at::Tensor rank_of_first(const at::Tensor& scores);

// Returns "hr@k" and "ndcg@k" for each k, of one held-out item per row. Sums over rows: [] or [members].
std::vector<Metric> ranking_metrics(const at::Tensor& rank, const std::vector<int64_t>& ks);

// Returns the ranks of the held-out items, best first: scores [.., B, N], counts of held-out items [B] → int64
// [.., B, P], where P is the largest count. Elements after a row's count are N.
at::Tensor ranks_of_held_out(const at::Tensor& scores, const at::Tensor& held_out);

// Returns "NAME@k" for each k and each name: hr, ndcg, recall, precision, mrr, map, coverage, gini. scores
// [.., B, N]; the batch's field `held_out` [B] has the number of held-out items, one without it. coverage and gini need
// a full ranking, whose field `item` has the ids; else Error(config).
std::vector<Metric> ranking_metrics(const at::Tensor& scores, const Batch& batch, const std::vector<std::string>& names,
                                    const std::vector<int64_t>& ks);

// Full ranking (data.ranking): the batch's field `excluded` [.., B, N] marks items that a user already has. The
// strategy passes each evaluation through the two functions below, so models do not handle the field. Without the field
// they change nothing.

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
