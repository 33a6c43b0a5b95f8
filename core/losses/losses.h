// Losses that any model can be given by name, and what they share. Each returns a sum and a weight over this rank's rows,
// per member where activations have members: shapes [] or [members]. Half-precision predictions are taken to float.
#pragma once
#include "core/model_interface.h"
#include "core/options.h"
#include "core/registry.h"

namespace convoy {

void register_losses(Registry& registry);

std::shared_ptr<const LossFunction> make_bce(const Options& options);
std::shared_ptr<const LossFunction> make_mse(const Options& options);
std::shared_ptr<const LossFunction> make_cross_entropy(const Options& options);
std::shared_ptr<const LossFunction> make_bpr(const Options& options);

// At least float, whatever the activations are.
at::Tensor at_least_float(const at::Tensor& tensor);

// The prediction in the target's shape: a last dimension of one is dropped, members stay in front.
// Error(config) naming the loss and both shapes where they do not fit.
at::Tensor fitted(const at::Tensor& prediction, const at::Tensor& target, int64_t members, const char* loss);

// A weight per row ([B], [members, B]) or per element, with or without members, in the shape and dtype of `elements`
// ([.., B, …], members in front).
at::Tensor aligned_weight(const at::Tensor& weight, const at::Tensor& elements, int64_t members);

// Sum of `elements` times weight, and the sum of weights; without a weight each element counts one.
Loss weighted(const at::Tensor& elements, const at::Tensor& weight, int64_t members);

// Options may be empty, where a model's own loss is taken without any having been written.
double real_or(const Options& options, const char* name, double fallback);

}  // namespace convoy
