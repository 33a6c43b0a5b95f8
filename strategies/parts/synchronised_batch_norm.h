// Batch norm over the rows of several ranks: mean and variance are those of all their rows together.
//
// Forward sends one all-gather of 2·C + 1 numbers (count, means, sums of squared deviations, combined as Chan, Golub and
// LeVeque do, 1979), backward one all-reduce of 2·C. Every rank of the group takes part in both, also one without rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "core/communicator.h"

namespace convoy {

// Training only. input: [B, C, …], any float dtype; weight, bias and the running figures [C], the latter updated in place,
// alike on all ranks. Where all ranks together have one value per channel or none, the running figures are used instead.
// `name` of the layer, for stalls.
at::Tensor synchronised_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                   const at::Tensor& running_mean, const at::Tensor& running_var, double momentum,
                                   double eps, const CommunicatorPtr& group, const std::string& name);

}  // namespace convoy
