// How well the held-out item stands among its candidates: HR@k (it is among the first k) and NDCG@k (1 / log2(rank + 2) if
// so), each row counting one.
#pragma once
#include <vector>

#include "core/model.h"

namespace convoy {

// Rank, 0 the best, of candidate 0: scores [.., B, N], excluded (or undefined) [.., B, N] bool for candidates that do not
// count → int64 [.., B]. Ties count against it, and so does a score that is not a number.
at::Tensor rank_of_first(const at::Tensor& scores, const at::Tensor& excluded);

// "hr@k" and "ndcg@k" for each k. Sums over rows: [] or [members].
std::vector<Metric> ranking_metrics(const at::Tensor& rank, const std::vector<int64_t>& ks);

}  // namespace convoy
