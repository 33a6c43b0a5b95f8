// The linear products of K members as one batched product, whose gradients are written where the strategy wants them.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "strategies/parts/parameter.h"

namespace convoy {

// input [K, …, in], weight [K, out, in] (rows of members may lie apart), bias [K, out] or null → [K, …, out].
at::Tensor stacked_linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const std::shared_ptr<const ForwardState>& state);

}  // namespace convoy
