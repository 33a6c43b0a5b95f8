// What the autograd nodes of linear products share, be the weight whole (linear_function.h), stacked (stacked_linear.h) or cut
// (sharded_product.h): the graph is the usual one, but gradients of weight and bias are written where the strategy wants them.
//
// A subclass differentiates; edges are input, weight, bias. For sources alone: it brings autograd's headers.
#pragma once
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <utility>

#include "strategies/parts/parameter.h"

namespace convoy {

// Whether a gradient goes to Parameter::gradient: not while a gradient of the gradient is wanted, nor in a backward that
// somebody else runs.
bool writes_gradient(const Parameter& parameter, const ForwardState& state);

// Whether LibTorch's functions serve without a node of our own: where no graph is made, and under autocast, which chooses
// dtypes above a node.
bool without_node(const at::Tensor& input, const at::Tensor& weight);

class ProductNode : public torch::autograd::Node {
 public:
  ProductNode(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias,
              std::shared_ptr<const ForwardState> state);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;

 protected:
  // `output`: the gradient of the product. What is written to its place leaves its result undefined.
  virtual void differentiate(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                             torch::autograd::variable_list& results) = 0;

  bool wants_input() { return task_should_compute_output(0); }
  bool wants_weight() { return task_should_compute_output(1); }
  bool wants_bias() { return bias_ != nullptr && task_should_compute_output(2); }

  ParameterPtr weight_;
  ParameterPtr bias_;
  std::shared_ptr<const ForwardState> state_;

 private:
  torch::autograd::SavedVariable input_;
  torch::autograd::SavedVariable saved_weight_;
};

// `output` with such a node in its history, where anything of it is trained.
template <class Node, class... More>
at::Tensor recorded(at::Tensor output, const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                    const std::shared_ptr<const ForwardState>& state, const More&... more) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (!torch::autograd::compute_requires_grad(input, weight->value, bias_value)) return output;
  auto node = std::make_shared<Node>(input, weight, bias, state, more...);
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight->value, bias_value));
  torch::autograd::set_history(output, node);
  return output;
}

}  // namespace convoy
