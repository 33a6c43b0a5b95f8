#include "strategies/common/layers/linear_function.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>

#include "core/tensors/products.h"
#include "core/tensors/skinny_product.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {

using torch::autograd::variable_list;

bool without_node(const at::Tensor& input, const at::Tensor& weight) {
  return !at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(input.device().type()) ||
         input.scalar_type() != weight.scalar_type();
}

ProductNode::ProductNode(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias, StatePtr state)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      state_(std::move(state)),
      input_(input, false),
      saved_weight_(weight_->value, false) {}

variable_list ProductNode::apply(variable_list&& gradients) {
  std::lock_guard<std::mutex> lock(mutex_);
  variable_list results(3);
  at::Tensor output = std::move(gradients[0]);  // moved: `gradients` would keep this tensor in memory
  std::optional<at::AutoDispatchBelowADInplaceOrView> without_graph;
  if (!at::GradMode::is_enabled()) without_graph.emplace();
  if (output.defined()) differentiate(output, input_.unpack(), saved_weight_.unpack(), results);
  return results;
}

void ProductNode::release_variables() {
  std::lock_guard<std::mutex> lock(mutex_);
  input_.reset_data();
  saved_weight_.reset_data();
}

namespace {

// True if a gradient goes to Parameter::gradient. False in a backward that the strategy did not start, and if a
// gradient of the gradient is required.
bool writes_gradient(const Parameter& parameter, const ForwardState& state) {
  return state.collecting && parameter.gradient.defined() && !at::GradMode::is_enabled() &&
         parameter.gradient.scalar_type() == parameter.value.scalar_type();
}

// Rows of a gradient or an input, as the weight's matrix takes them: [rows, size], or [K, rows, size] of a stack.
at::Tensor rows_for(const at::Tensor& weight, const at::Tensor& tensor) {
  if (tensor.dim() == weight.dim()) return tensor;
  const at::IntArrayRef sizes = tensor.sizes();
  const bool stack = weight.dim() == 3;
  std::vector<int64_t> shape;
  if (stack) shape.push_back(sizes.front());
  shape.push_back(c10::multiply_integers(sizes.slice(stack ? 1 : 0, sizes.size() - (stack ? 2 : 1))));
  shape.push_back(sizes.back());
  return !at::GradMode::is_enabled() && tensor.is_contiguous() ? plain_view(tensor, shape) : tensor.reshape(shape);
}

class LinearBackward : public ProductNode {
 public:
  using ProductNode::ProductNode;
  std::string name() const override { return "ConvoyLinearBackward"; }

  // Keeps the node's output for relu's gradient.
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
  void differentiate(at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                     torch::autograd::variable_list& results) override {
    // A copy, if the input has gaps; only the weight's gradient and skinny products need it.
    const at::Tensor rows = wants_weight() || weight.dim() == 3 ? rows_for(weight, input) : input;
    const bool loops =
        !at::GradMode::is_enabled() && is_skinny(rows, weight) && is_skinny_operand(output, weight.scalar_type());
    at::Tensor own = output;
    if (relu_) {
      const at::Tensor positive = positive_.unpack(shared_from_this());
      own = loops ? skinny_relu_gradient(output, positive) : at::threshold_backward(output, positive, 0);
      // Frees the gradient of relu's result, as a separate relu node would: later products do not need it.
      output.reset();
      if (!torch::autograd::get_current_graph_task_keep_graph()) positive_.reset_data();
    }
    const at::Tensor flat = rows_for(weight, own);
    if (wants_weight()) {
      const auto gradient = [=, state = state_](Parameter& own) { weight_gradient(own, *state, flat, rows); };
      if (!later(weight_, double(flat.nbytes() + rows.nbytes()), gradient))
        results[1] = weight_gradient(*weight_, *state_, flat, rows);
    }
    if (wants_bias()) {
      const auto sum = [=, state = state_](Parameter& own) { bias_gradient(own, *state, flat); };
      // Waits only if a product of the weight or the bias waits already. The weight's product keeps `flat` alive, so
      // this one counts no bytes.
      if (!(weight_->awaited || bias_->awaited) || !later(bias_, 0, sum))
        results[2] = bias_gradient(*bias_, *state_, flat);
    }
    if (!wants_input()) return;
    at::Tensor& result = results[0] = loops ? skinny_input_gradient(flat, weight) : product(flat, weight);
    if (result.dim() != input.dim())
      result = at::GradMode::is_enabled() ? result.view(input.sizes()) : plain_view(result, input.sizes());
  }

 private:
  // Returns true if it defers the product until the gradients of inputs are sent. `bytes`: memory that a deferred
  // product keeps alive.
  template <class Product>
  bool later(const ParameterPtr& parameter, double bytes, Product product) {
    WaitingProducts* const waiting = state_->later;
    if (waiting == nullptr || parameter->prompt || !writes_gradient(*parameter, *state_)) return false;
    // After a waiting product of the same gradient, later ones wait too: the order of sums does not change.
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
  if (!writes_gradient(weight, state)) return product(output.mT(), input);
  if (is_skinny(input, weight.gradient) && is_skinny_operand(output, input.scalar_type()))
    skinny_weight_gradient(output, input, weight.gradient, weight.written);
  else
    product_into(weight.gradient, output.mT(), input, weight.written);
  weight.written = true;
  return {};
}

at::Tensor bias_gradient(Parameter& bias, const ForwardState& state, const at::Tensor& output) {
  if (!writes_gradient(bias, state)) return output.sum(-2);
  if (is_skinny_sum(output, bias.gradient))
    skinny_bias_gradient(output, bias.gradient, bias.written);
  else if (bias.written)
    bias.gradient.add_(output.sum(-2));
  else
    at::sum_out(bias.gradient, output, -2);
  bias.written = true;
  return {};
}

at::Tensor linear(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias, const StatePtr& state,
                  bool relu) {
  const auto result = [&] {
    const at::Tensor& matrix = weight->value;
    const at::Tensor bias_value = bias ? bias->value : at::Tensor();
    const bool stack = matrix.dim() == 3;
    const at::Tensor rows = stack ? rows_for(matrix, input) : input;
    const bool skinny = is_skinny(rows, matrix);
    at::Tensor output = skinny  ? skinny_linear(rows, matrix, bias_value, relu)
                        : stack ? batched_linear_product(rows, matrix, bias_value)
                                : linear_product(rows, matrix, bias_value);
    if (relu && !skinny) output.relu_();
    return stack ? output.view(with_last(input.sizes(), matrix.size(1))) : output;
  };
  if (without_node(input, weight->value)) return result();  // has a graph only under autocast, which is never skinny
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = result();
  }
  output = recorded<LinearBackward>(std::move(output), input, weight, bias, state);
  if (relu && output.requires_grad()) static_cast<LinearBackward&>(*output.grad_fn()).keep(output);
  return output;
}

}  // namespace convoy
