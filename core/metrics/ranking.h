// How well the held-out item stands among its candidates: HR@k (it is among the first k) and NDCG@k (1 / log2(rank + 2) if
// so), each row counting one.
#pragma once
#include <vector>

#include "core/model_interface.h"

namespace convoy {

// Rank, 0 the best, of candidate 0: scores [.., B, N] → int64 [.., B]. Ties count against it, and so does a score
// that is not a number.
at::Tensor rank_of_first(const at::Tensor& scores);

// "hr@k" and "ndcg@k" for each k. Sums over rows: [] or [members].
std::vector<Metric> ranking_metrics(const at::Tensor& rank, const std::vector<int64_t>& ks);

// Full ranking (data.ranking): the batch's field `excluded` [.., B, N] marks the items that a user already has. The
// strategy passes each evaluation through these two functions, so a model need not know the field. Without it they
// change nothing.
//
// The model's outputs for `Model::metrics`: a score [.., B, N] of such an item becomes −inf. Throws Error(config)
// when no output has one score for each item.
TensorList scores_of_new_items(const TensorList& outputs, const Batch& batch);
// What `Model::examples` returned: such an item has no weight in the loss.
Examples examples_of_new_items(Examples examples, const Batch& batch);

}  // namespace convoy
