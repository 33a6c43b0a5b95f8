#include "strategies/parts/products/product_node.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace convoy {

using torch::autograd::variable_list;

bool writes_gradient(const Parameter& parameter, const ForwardState& state) {
  return state.collecting && parameter.gradient.defined() && !at::GradMode::is_enabled() &&
         parameter.gradient.scalar_type() == parameter.value.scalar_type();
}

bool without_node(const at::Tensor& input, const at::Tensor& weight) {
  return !at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(input.device().type()) ||
         input.scalar_type() != weight.scalar_type();
}

ProductNode::ProductNode(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias,
                         std::shared_ptr<const ForwardState> state)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      state_(std::move(state)),
      input_(input, false),
      saved_weight_(weight_->value, false) {}

variable_list ProductNode::apply(variable_list&& gradients) {
  std::lock_guard<std::mutex> lock(mutex_);
  variable_list results(3);
  if (gradients[0].defined()) differentiate(gradients[0], input_.unpack(), saved_weight_.unpack(), results);
  return results;
}

void ProductNode::release_variables() {
  std::lock_guard<std::mutex> lock(mutex_);
  input_.reset_data();
  saved_weight_.reset_data();
}

}  // namespace convoy
