// By Layers' rank of the target, so that cut logits need no gathering.
#include "core/metrics/accuracy.h"

#include <ATen/ops/ones_like.h>

namespace convoy {

Metric accuracy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight, Layers& layers) {
  const at::Tensor hit = layers.target_rank(logits, target).eq(0).to(at::kDouble);
  const at::Tensor each = weight.defined() ? weight.to(at::kDouble).expand_as(hit) : at::ones_like(hit);
  Metric metric;
  metric.name = "accuracy";
  metric.sum = (hit * each).sum(-1);
  metric.weight = each.sum(-1);
  return metric;
}

}  // namespace convoy
