#include "strategies/parts/linear_function.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace convoy {
namespace {

using torch::autograd::variable_list;

// Not while a gradient of the gradient is wanted, nor in a backward that somebody else runs.
bool direct(const Parameter& parameter, const ForwardState& state) {
  return state.collecting && parameter.gradient.defined() && !at::GradMode::is_enabled() &&
         parameter.gradient.scalar_type() == parameter.value.scalar_type();
}

class LinearBackward : public torch::autograd::Node {
 public:
  LinearBackward(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias,
                 std::shared_ptr<const ForwardState> state)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        state_(std::move(state)),
        input_(input, false),
        saved_weight_(weight_->value, false) {}

  std::string name() const override { return "ConvoyLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(3);
    const at::Tensor& output = gradients[0];
    if (!output.defined()) return results;
    const at::Tensor weight = saved_weight_.unpack();
    const at::Tensor input = input_.unpack();
    at::Tensor flat = output.reshape({-1, weight.size(0)});
    if (relu_) flat = at::threshold_backward(flat, positive_.unpack(shared_from_this()).reshape(flat.sizes()), 0);
    if (task_should_compute_output(1))
      results[1] = weight_gradient(*weight_, *state_, flat, input.reshape({-1, weight.size(1)}));
    if (bias_ && task_should_compute_output(2)) results[2] = bias_gradient(*bias_, *state_, flat);
    if (task_should_compute_output(0)) results[0] = flat.mm(weight).view(input.sizes());
    return results;
  }

  // The node's own output, where it ends in a relu.
  void keep(const at::Tensor& output) {
    relu_ = true;
    positive_ = torch::autograd::SavedVariable(output, true);
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    positive_.reset_data();
    input_.reset_data();
    saved_weight_.reset_data();
  }

 private:
  ParameterPtr weight_;
  ParameterPtr bias_;
  std::shared_ptr<const ForwardState> state_;
  torch::autograd::SavedVariable input_;
  torch::autograd::SavedVariable saved_weight_;
  torch::autograd::SavedVariable positive_;
  bool relu_ = false;
};

}  // namespace

at::Tensor weight_gradient(Parameter& weight, const ForwardState& state, const at::Tensor& output,
                           const at::Tensor& input) {
  if (!direct(weight, state)) return output.t().mm(input);
  if (weight.written)
    weight.gradient.addmm_(output.t(), input);
  else
    at::mm_out(weight.gradient, output.t(), input);
  weight.written = true;
  return {};
}

at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output) {
  if (!direct(bias, state)) return output.sum(0);
  if (bias.written)
    bias.gradient.add_(output.sum(0));
  else
    at::sum_out(bias.gradient, output, 0);
  bias.written = true;
  return {};
}

at::Tensor linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                  const std::shared_ptr<const ForwardState>& state, bool relu) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  // Autocast chooses dtypes above this node, so its own formulas serve it.
  const bool plain = !at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(input.device().type()) ||
                     input.scalar_type() != weight->value.scalar_type();
  if (plain) {
    const at::Tensor output = at::linear(input, weight->value, bias_value);
    return relu ? at::relu(output) : output;
  }
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = at::linear(input, weight->value, bias_value);
    if (relu) output.relu_();
  }
  if (torch::autograd::compute_requires_grad(input, weight->value, bias_value)) {
    auto node = std::make_shared<LinearBackward>(input, weight, bias, state);
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight->value, bias_value));
    torch::autograd::set_history(output, node);
    if (relu) node->keep(output);
  }
  return output;
}

}  // namespace convoy
