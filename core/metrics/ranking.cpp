// Comparisons and sums; no sorting is needed to find one rank.
#include "core/metrics/ranking.h"

#include <ATen/ops/log2.h>
#include <ATen/ops/ones_like.h>

#include "core/text.h"

namespace convoy {

at::Tensor rank_of_first(const at::Tensor& scores, const at::Tensor& excluded) {
  const at::Tensor own = scores.narrow(-1, 0, 1);
  // "Not below" counts ties and figures that are not numbers, on either side, against the held-out item.
  at::Tensor above = scores.narrow(-1, 1, scores.size(-1) - 1).lt(own).logical_not();
  if (excluded.defined()) above = above.logical_and(excluded.narrow(-1, 1, excluded.size(-1) - 1).logical_not());
  return above.sum(-1);
}

std::vector<Metric> ranking_metrics(const at::Tensor& rank, const std::vector<int64_t>& ks) {
  const at::Tensor gain = at::log2(rank.to(at::kDouble) + 2).reciprocal();
  const at::Tensor rows = at::ones_like(gain).sum(-1);
  std::vector<Metric> metrics;
  for (int64_t k : ks) {
    const at::Tensor hit = rank.lt(k).to(at::kDouble);
    Metric hr;
    hr.name = str("hr@", k);
    hr.sum = hit.sum(-1);
    hr.weight = rows;
    Metric ndcg;
    ndcg.name = str("ndcg@", k);
    ndcg.sum = (hit * gain).sum(-1);
    ndcg.weight = rows;
    metrics.push_back(hr);
    metrics.push_back(ndcg);
  }
  return metrics;
}

}  // namespace convoy
