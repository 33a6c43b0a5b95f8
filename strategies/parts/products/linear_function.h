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

// input [.., in], weight [out, in], bias [out] or null → [.., out]; `relu`: of that, in the same node.
at::Tensor linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                  const std::shared_ptr<const ForwardState>& state, bool relu = false);

// For nodes of other products, while they run: output [rows, out] (its gradient) and input [rows, in] give the
// weight's [out, in], or output alone the bias' [out]. Written to Parameter::gradient where a strategy collects, and
// then undefined.
at::Tensor weight_gradient(Parameter& weight, const ForwardState& state, const at::Tensor& output,
                           const at::Tensor& input);
at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output);

}  // namespace convoy
