// Share of rows whose target has the largest logit; ties count against it.
#pragma once
#include "core/model_interface.h"

namespace convoy {
// logits [.., B, C], target [.., B] int64; weight per row, undefined: all one. Sums over rows: [] or [members].
Metric accuracy(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight, Layers& layers);
}  // namespace convoy
