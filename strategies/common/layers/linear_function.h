// A linear product that writes its weight gradient to memory of the strategy.
//
// Autograd would create a temporary of the weight's size, add it to `.grad`, and require `.grad` to be zeroed: four
// more passes over memory. The graph is the usual one: the node leads to the weight's gradient accumulator, which
// receives an undefined gradient when the weight's gradient is complete.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <memory>

#include "strategies/common/layers/parameter.h"

namespace convoy {

// ProductNode: base class of the autograd nodes of linear products, whole or stacked (linear_function.h) or sharded
// (strategies/tensor/group_functions.h). Gradients of weight and bias are written to memory of the strategy.
//
// A subclass differentiates; its edges are input, weight, bias. Include this header in sources only, because it
// includes autograd.

// True if LibTorch's functions suffice: gradients are off, dtypes differ, or autocast is on, which chooses dtypes
// outside of nodes.
bool without_node(const at::Tensor& input, const at::Tensor& weight);

class ProductNode : public torch::autograd::Node {
 public:
  ProductNode(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias, StatePtr state);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;

 protected:
  // `output`: gradient of the product; may be released before the end, to save memory. Gradients that are written to
  // Parameter::gradient stay undefined in `results`.
  virtual void differentiate(at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                             torch::autograd::variable_list& results) = 0;

  bool wants_input() { return task_should_compute_output(0); }
  bool wants_weight() { return task_should_compute_output(1); }
  bool wants_bias() { return bias_ != nullptr && task_should_compute_output(2); }

  ParameterPtr weight_;
  ParameterPtr bias_;
  StatePtr state_;

 private:
  torch::autograd::SavedVariable input_;
  torch::autograd::SavedVariable saved_weight_;
};

// Returns `output` with a Node in its history if input, weight or bias require gradients.
template <class Node, class... More>
at::Tensor recorded(at::Tensor output, const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                    const StatePtr& state, const More&... more) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (!torch::autograd::compute_requires_grad(input, weight->value, bias_value)) return output;
  auto node = std::make_shared<Node>(input, weight, bias, state, more...);
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight->value, bias_value));
  torch::autograd::set_history(output, node);
  return output;
}

// input [.., in], weight [out, in], bias [out] or null → [.., out]. `relu` applies to the result, in the same node.
// A stack of K members has one product for all: input [K, .., in], weight [K, out, in], bias [K, out] → [K, .., out].
at::Tensor linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias, const StatePtr& state,
                  bool relu = false);

// For nodes of other products, in their backward. `output` [rows, out] is a gradient. The first returns the gradient of
// the weight [out, in], with the input [rows, in]; the second that of the bias [out]. If the strategy collects, they
// write it to Parameter::gradient and return an undefined tensor. All tensors of a stack have a first dimension K.
at::Tensor weight_gradient(Parameter& weight, const ForwardState& state, const at::Tensor& output,
                           const at::Tensor& input);
at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output);

}  // namespace convoy
