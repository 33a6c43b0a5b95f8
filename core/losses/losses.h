// Losses that a configuration selects by name, and their common functions. Each returns a sum and a weight over this
// rank's rows: [], or [members] if activations have members. Half-precision predictions are converted to float.
#pragma once
#include "core/base/options.h"
#include "core/model_interface.h"
#include "core/registry.h"

namespace convoy {

void register_losses(Registry& registry);

LossPtr make_bce(const Options& options);
LossPtr make_mse(const Options& options);
LossPtr make_cross_entropy(const Options& options);
LossPtr make_bpr(const Options& options);

// Cross-entropy of each row: logits [N, C], target [N] (int64) → [N], as at::cross_entropy_loss without a reduction.
// For few classes on a CPU it is several times as fast, and differentiable once.
at::Tensor row_cross_entropy(const at::Tensor& logits, const at::Tensor& target);

// Converts half precision to float; leaves float and double.
at::Tensor at_least_float(const at::Tensor& tensor);

}  // namespace convoy
