// Losses that a configuration selects by name, and their common functions. Each returns a sum and a weight over this
// rank's rows: [], or [members] if activations have members. Half-precision predictions are converted to float.
#pragma once
#include <functional>
#include <map>
#include <string>

#include "core/base/options.h"
#include "core/model_interface.h"

namespace convoy {

using LossFactory = std::function<LossPtr(const Options&)>;
std::map<std::string, LossFactory> loss_factories();  // by name; the registry of core has all of them

LossPtr make_bce(const Options& options);
LossPtr make_mse(const Options& options);
LossPtr make_cross_entropy(const Options& options);
LossPtr make_bpr(const Options& options);

// --- For losses of your own, also in plugins; `members`: layers.members(), 0 without an ensemble ---

// Converts half precision to float; leaves float and double.
at::Tensor at_least_float(const at::Tensor& tensor);
// Returns the prediction in the target's shape: drops a last dimension of size 1. The member dimension stays first.
// Error(config) naming `loss` and both shapes if they do not match.
at::Tensor fitted(const at::Tensor& prediction, const at::Tensor& target, int64_t members, const char* loss);
// Returns the sum of `elements` [B, …] (members in front) times weight, and the sum of weights. `weight`: for each row
// or each element; undefined: each element counts 1. Error(config) if it does not fit.
Loss weighted(const at::Tensor& elements, const at::Tensor& weight, int64_t members);
// Cross-entropy of each row: logits [N, C], target [N] (int64) → [N], as at::cross_entropy_loss without a reduction.
// For few classes on a CPU it is several times as fast, and differentiable once.
at::Tensor row_cross_entropy(const at::Tensor& logits, const at::Tensor& target);

}  // namespace convoy
