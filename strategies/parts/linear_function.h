// A linear product whose weight gradient is written where the strategy wants it.
//
// Autograd's own way makes a temporary of the weight's size, adds it to `.grad` and wants that zeroed before: four sweeps
// over memory more than writing the product to its place. The graph is the usual one: the node leads to the weight's
// gradient accumulator, which is told (with an undefined gradient) that the weight is done.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "strategies/parts/parameter.h"

namespace convoy {

// input [.., in], weight [out, in], bias [out] or null → [.., out].
at::Tensor linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                  const std::shared_ptr<const ForwardState>& state);

}  // namespace convoy
