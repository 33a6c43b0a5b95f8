#include "strategies/parts/members/stacked_linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/sum.h>

#include "strategies/parts/products/product_node.h"

namespace convoy {
namespace {

// [K, …, size] → [K, N, size]
at::Tensor by_member(const at::Tensor& tensor) {
  return tensor.dim() == 3 ? tensor : tensor.reshape({tensor.size(0), -1, tensor.size(-1)});
}

at::Tensor product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor turned = weight.transpose(1, 2);
  return bias.defined() ? at::baddbmm(bias.unsqueeze(1), input, turned) : at::bmm(input, turned);
}

// Where rows of members lie apart, LibTorch would make a product written to them of one call for each member, whose costs
// beside the product are those of a small layer: one batched product and a copy take less.
at::Tensor weight_gradient(Parameter& weight, const ForwardState& state, const at::Tensor& output,
                           const at::Tensor& input) {
  const at::Tensor turned = output.transpose(1, 2);
  if (!writes_gradient(weight, state)) return turned.bmm(input);
  const bool together = weight.gradient.is_contiguous();
  if (weight.written && together)
    weight.gradient.baddbmm_(turned, input);
  else if (weight.written)
    weight.gradient.add_(turned.bmm(input));
  else if (together)
    at::bmm_out(weight.gradient, turned, input);
  else
    weight.gradient.copy_(turned.bmm(input));
  weight.written = true;
  return {};
}

at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output) {
  if (!writes_gradient(bias, state)) return output.sum(1);
  if (bias.written)
    bias.gradient.add_(output.sum(1));
  else
    at::sum_out(bias.gradient, output, 1);
  bias.written = true;
  return {};
}

class StackedLinearBackward : public ProductNode {
 public:
  using ProductNode::ProductNode;
  std::string name() const override { return "ConvoyStackedLinearBackward"; }

 protected:
  void differentiate(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                     torch::autograd::variable_list& results) override {
    const at::Tensor output = by_member(gradient);
    if (wants_weight()) results[1] = weight_gradient(*weight_, *state_, output, by_member(input));
    if (wants_bias()) results[2] = bias_gradient(*bias_, *state_, output);
    if (wants_input()) results[0] = output.bmm(weight).view(input.sizes());
  }
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
  if (without_node(input, weight->value)) return product(by_member(input), weight->value, bias_value).view(shape);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = product(by_member(input), weight->value, bias_value).view(shape);
  }
  return recorded<StackedLinearBackward>(std::move(output), input, weight, bias, state);
}

}  // namespace convoy
