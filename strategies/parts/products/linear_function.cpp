#include "strategies/parts/products/linear_function.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/threshold_backward.h>

#include "strategies/parts/products/narrow_product.h"
#include "strategies/parts/products/product_node.h"

namespace convoy {
namespace {

class LinearBackward : public ProductNode {
 public:
  using ProductNode::ProductNode;
  std::string name() const override { return "ConvoyLinearBackward"; }

  // The node's own output, where it ends in a relu.
  void keep(const at::Tensor& output) {
    relu_ = true;
    positive_ = torch::autograd::SavedVariable(output, true);
  }

  void release_variables() override {
    ProductNode::release_variables();
    std::lock_guard<std::mutex> lock(mutex_);
    positive_.reset_data();
  }

 protected:
  void differentiate(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                     torch::autograd::variable_list& results) override {
    at::Tensor flat = output.reshape({-1, weight.size(0)});
    const bool loops =
        !at::GradMode::is_enabled() && narrow(input, weight) && narrow_operand(output, weight.scalar_type());
    if (relu_) {
      const at::Tensor positive = positive_.unpack(shared_from_this()).reshape(flat.sizes());
      flat = loops ? narrow_relu_gradient(flat, positive) : at::threshold_backward(flat, positive, 0);
    }
    if (wants_weight()) {
      const at::Tensor rows = input.reshape({-1, weight.size(1)});
      const auto product = [=, state = state_](Parameter& own) { weight_gradient(own, *state, flat, rows); };
      if (!later(weight_, static_cast<double>(flat.nbytes() + rows.nbytes()), product))
        results[1] = weight_gradient(*weight_, *state_, flat, rows);
    }
    if (wants_bias()) {
      const auto sum = [=, state = state_](Parameter& own) { bias_gradient(own, *state, flat); };
      // Its gradient is kept for the weight already, or not at all.
      if (!(weight_->awaited || bias_->awaited) || !later(bias_, 0, sum))
        results[2] = bias_gradient(*bias_, *state_, flat);
    }
    if (wants_input()) results[0] = (loops ? narrow_input_gradient(flat, weight) : flat.mm(weight)).view(input.sizes());
  }

 private:
  // Whether the product is left until the gradients of inputs are on their way. `bytes`: what it keeps alive.
  template <class Product>
  bool later(const ParameterPtr& parameter, double bytes, Product product) {
    WaitingProducts* const waiting = state_->later;
    if (waiting == nullptr || parameter->prompt || !writes_gradient(*parameter, *state_)) return false;
    // What comes behind a waiting part of the same gradient waits, too: sums keep their order.
    if (!parameter->awaited && waiting->bytes + bytes > waiting->most) return false;
    waiting->bytes += bytes;
    parameter->awaited = true;
    waiting->list.push_back([parameter, product = std::move(product)] { product(*parameter); });
    return true;
  }

  torch::autograd::SavedVariable positive_;
  bool relu_ = false;
};

}  // namespace

at::Tensor weight_gradient(Parameter& weight, const ForwardState& state, const at::Tensor& output,
                           const at::Tensor& input) {
  if (!writes_gradient(weight, state)) return output.t().mm(input);
  if (narrow(input, weight.value) && narrow_operand(output, input.scalar_type()) && weight.gradient.is_contiguous())
    narrow_weight_gradient(output, input, weight.gradient, weight.written);
  else if (weight.written)
    weight.gradient.addmm_(output.t(), input);
  else
    at::mm_out(weight.gradient, output.t(), input);
  weight.written = true;
  return {};
}

at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output) {
  if (!writes_gradient(bias, state)) return output.sum(0);
  if (narrow_sum(output, bias.gradient))
    narrow_bias_gradient(output, bias.gradient, bias.written);
  else if (bias.written)
    bias.gradient.add_(output.sum(0));
  else
    at::sum_out(bias.gradient, output, 0);
  bias.written = true;
  return {};
}

at::Tensor linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                  const std::shared_ptr<const ForwardState>& state, bool relu) {
  const auto product = [&] {
    const at::Tensor bias_value = bias ? bias->value : at::Tensor();
    if (narrow(input, weight->value)) return narrow_linear(input, weight->value, bias_value, relu);
    at::Tensor output = at::linear(input, weight->value, bias_value);
    return relu ? output.relu_() : output;
  };
  if (without_node(input, weight->value)) return product();  // with a graph only where it is not narrow: under autocast
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = product();
  }
  output = recorded<LinearBackward>(std::move(output), input, weight, bias, state);
  if (relu && output.requires_grad()) static_cast<LinearBackward&>(*output.grad_fn()).keep(output);
  return output;
}

}  // namespace convoy
