#include "strategies/parts/stacked_linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace convoy {
namespace {

using torch::autograd::variable_list;

// As linear_function.cpp's: not while a gradient of the gradient is wanted, nor in a backward that somebody else runs.
bool direct(const Parameter& parameter, const ForwardState& state) {
  return state.collecting && parameter.gradient.defined() && !at::GradMode::is_enabled() &&
         parameter.gradient.scalar_type() == parameter.value.scalar_type();
}

// [K, …, size] → [K, N, size]
at::Tensor by_member(const at::Tensor& tensor) {
  return tensor.dim() == 3 ? tensor : tensor.reshape({tensor.size(0), -1, tensor.size(-1)});
}

at::Tensor product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor turned = weight.transpose(1, 2);
  return bias.defined() ? at::baddbmm(bias.unsqueeze(1), input, turned) : at::bmm(input, turned);
}

at::Tensor weight_gradient(Parameter& weight, const ForwardState& state, const at::Tensor& output,
                           const at::Tensor& input) {
  const at::Tensor turned = output.transpose(1, 2);
  if (!direct(weight, state)) return turned.bmm(input);
  if (weight.written)
    weight.gradient.baddbmm_(turned, input);
  else
    at::bmm_out(weight.gradient, turned, input);
  weight.written = true;
  return {};
}

at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output) {
  if (!direct(bias, state)) return output.sum(1);
  if (bias.written)
    bias.gradient.add_(output.sum(1));
  else
    at::sum_out(bias.gradient, output, 1);
  bias.written = true;
  return {};
}

class StackedLinearBackward : public torch::autograd::Node {
 public:
  StackedLinearBackward(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias,
                        std::shared_ptr<const ForwardState> state)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        state_(std::move(state)),
        input_(input, false),
        saved_weight_(weight_->value, false) {}

  std::string name() const override { return "ConvoyStackedLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(3);
    if (!gradients[0].defined()) return results;
    const at::Tensor weight = saved_weight_.unpack(), input = input_.unpack();
    const at::Tensor output = by_member(gradients[0]);
    if (task_should_compute_output(1)) results[1] = weight_gradient(*weight_, *state_, output, by_member(input));
    if (bias_ && task_should_compute_output(2)) results[2] = bias_gradient(*bias_, *state_, output);
    if (task_should_compute_output(0)) results[0] = output.bmm(weight).view(input.sizes());
    return results;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    input_.reset_data();
    saved_weight_.reset_data();
  }

 private:
  ParameterPtr weight_;
  ParameterPtr bias_;
  std::shared_ptr<const ForwardState> state_;
  torch::autograd::SavedVariable input_;
  torch::autograd::SavedVariable saved_weight_;
};

std::vector<int64_t> output_shape(const at::Tensor& input, int64_t out) {
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = out;
  return shape;
}

}  // namespace

at::Tensor stacked_linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const std::shared_ptr<const ForwardState>& state) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  const std::vector<int64_t> shape = output_shape(input, weight->value.size(1));
  const bool plain = !at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(input.device().type()) ||
                     input.scalar_type() != weight->value.scalar_type();
  if (plain) return product(by_member(input), weight->value, bias_value).view(shape);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = product(by_member(input), weight->value, bias_value).view(shape);
  }
  if (torch::autograd::compute_requires_grad(input, weight->value, bias_value)) {
    auto node = std::make_shared<StackedLinearBackward>(input, weight, bias, state);
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight->value, bias_value));
    torch::autograd::set_history(output, node);
  }
  return output;
}

}  // namespace convoy
