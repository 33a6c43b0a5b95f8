#include "strategies/parts/sharded_product.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

#include "strategies/parts/group_functions.h"
#include "strategies/parts/linear_function.h"

namespace convoy {
namespace {

using torch::autograd::variable_list;
using StatePtr = std::shared_ptr<const ForwardState>;

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> shape = sizes.vec();
  shape.back() = last;
  return shape;
}

// Edges: input, weight, bias.
class ProductBackward : public torch::autograd::Node {
 public:
  ProductBackward(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias, StatePtr state, ProductGroup group)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        state_(std::move(state)),
        group_(std::move(group)),
        input_(input, false),
        saved_weight_(weight_->value, false) {}

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(3);
    if (!gradients[0].defined()) return results;
    const at::Tensor input = input_.unpack(), weight = saved_weight_.unpack();
    if (at::GradMode::is_enabled())
      with_graph(gradients[0], input, weight, results);
    else
      once(gradients[0], input, weight, results);
    return results;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    input_.reset_data();
    saved_weight_.reset_data();
  }

 protected:
  // `output` is the gradient of the output. `with_graph`: gradients of the gradients will be asked for.
  virtual void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                    variable_list& results) = 0;
  virtual void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                          variable_list& results) = 0;

  bool wants_input() { return task_should_compute_output(0); }
  bool wants_weight() { return task_should_compute_output(1); }
  bool wants_bias() { return bias_ != nullptr && task_should_compute_output(2); }
  Communicator& ranks() const { return *group_.group; }
  std::string gradient_name() const { return "gradient of the input of " + group_.name; }

  ParameterPtr weight_;
  ParameterPtr bias_;
  StatePtr state_;
  ProductGroup group_;

 private:
  torch::autograd::SavedVariable input_;
  torch::autograd::SavedVariable saved_weight_;
};

class ColumnBackward : public ProductBackward {
 public:
  using ProductBackward::ProductBackward;
  std::string name() const override { return "ConvoyColumnBackward"; }

 protected:
  void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
            variable_list& results) override {
    std::optional<GroupExchange> gathering, summing;
    if (group_.shares && wants_weight())
      gathering = start_gathering_sequence(input, ranks(), "input of " + group_.name);
    const at::Tensor flat = output.reshape({-1, weight.size(0)});
    if (wants_input()) {
      const at::Tensor part = flat.mm(weight).view(with_last(output.sizes(), weight.size(1)));
      summing = group_.shares ? start_sequence_of_sum(part, ranks(), gradient_name())
                              : start_sum(part, ranks(), gradient_name());
    }
    if (wants_weight()) {
      const at::Tensor whole = gathering ? gathering->wait() : input;
      results[1] = weight_gradient(*weight_, *state_, flat, whole.reshape({-1, weight.size(1)}));
    }
    if (wants_bias()) results[2] = bias_gradient(*bias_, *state_, flat);
    if (summing) results[0] = summing->wait();
  }

  void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                  variable_list& results) override {
    const at::Tensor whole = group_.shares ? sequence_to_parts(input, group_.group, group_.name)
                                           : to_parts(input, group_.group, group_.name);
    const at::Tensor flat = output.reshape({-1, weight.size(0)});
    const at::Tensor part = flat.mm(weight).view(whole.sizes());
    if (wants_input())
      results[0] = group_.shares ? sequence_of_sum(part, group_.group, gradient_name())
                                 : sum_of_parts(part, group_.group, gradient_name());
    if (wants_weight()) results[1] = flat.t().mm(whole.reshape({-1, weight.size(1)}));
    if (wants_bias()) results[2] = flat.sum(0);
  }
};

class RowBackward : public ProductBackward {
 public:
  using ProductBackward::ProductBackward;
  std::string name() const override { return "ConvoyRowBackward"; }

 protected:
  void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
            variable_list& results) override {
    const at::Tensor whole =
        group_.shares ? start_gathering_sequence(output, ranks(), "gradient of " + group_.name).wait() : output;
    const at::Tensor flat = whole.reshape({-1, weight.size(0)});
    if (wants_weight()) results[1] = weight_gradient(*weight_, *state_, flat, input.reshape({-1, weight.size(1)}));
    if (wants_bias()) results[2] = bias_gradient(*bias_, *state_, flat);
    if (wants_input()) results[0] = flat.mm(weight).view(input.sizes());
  }

  void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                  variable_list& results) override {
    const at::Tensor whole = group_.shares ? sequence_to_parts(output, group_.group, group_.name)
                                           : to_parts(output, group_.group, group_.name);
    const at::Tensor flat = whole.reshape({-1, weight.size(0)});
    if (wants_input()) results[0] = flat.mm(weight).view(input.sizes());
    if (wants_weight()) results[1] = flat.t().mm(input.reshape({-1, weight.size(1)}));
    if (!wants_bias()) return;
    const at::Tensor own = output.reshape({-1, weight.size(0)}).sum(0);
    results[2] = group_.shares ? sum_of_parts(own, group_.group, group_.name) : own;
  }
};

// Autocast chooses dtypes above a node of our own, so functions whose nodes are LibTorch's serve it.
bool by_functions(const at::Tensor& input, const at::Tensor& weight) {
  return !at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(input.device().type()) ||
         input.scalar_type() != weight.scalar_type();
}

template <class Backward>
at::Tensor recorded(at::Tensor output, const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                    const StatePtr& state, const ProductGroup& group) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (!torch::autograd::compute_requires_grad(input, weight->value, bias_value)) return output;
  auto node = std::make_shared<Backward>(input, weight, bias, state, group);
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight->value, bias_value));
  torch::autograd::set_history(output, node);
  return output;
}

at::Tensor column_by_functions(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                               const ProductGroup& group) {
  const at::Tensor whole = group.shares ? sequence_to_parts(input, group.group, "input of " + group.name)
                                        : to_parts(input, group.group, "input of " + group.name);
  return at::linear(whole, weight, bias);
}

at::Tensor row_by_functions(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                            const ProductGroup& group) {
  const at::Tensor part = at::linear(input, weight);
  const at::Tensor sum =
      group.shares ? sequence_of_sum(part, group.group, group.name) : sum_of_parts(part, group.group, group.name);
  if (!bias.defined()) return sum;
  const at::Tensor added = bias.to(sum.scalar_type());
  return sum + (group.shares ? to_parts(added, group.group, "bias of " + group.name) : added);
}

}  // namespace

at::Tensor column_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const StatePtr& state, const ProductGroup& group) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (by_functions(input, weight->value)) return column_by_functions(input, weight->value, bias_value, group);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor whole =
        group.shares ? start_gathering_sequence(input, *group.group, "input of " + group.name).wait() : input;
    output = at::linear(whole, weight->value, bias_value);
  }
  return recorded<ColumnBackward>(std::move(output), input, weight, bias, state, group);
}

at::Tensor row_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                       const StatePtr& state, const ProductGroup& group) {
  const at::Tensor bias_value = bias ? bias->value : at::Tensor();
  if (by_functions(input, weight->value)) return row_by_functions(input, weight->value, bias_value, group);
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor part = at::linear(input, weight->value).contiguous();
    output = (group.shares ? start_sequence_of_sum(part, *group.group, group.name)
                           : start_sum(part, *group.group, group.name))
                 .wait();
    if (bias_value.defined()) output.add_(bias_value);
  }
  return recorded<RowBackward>(std::move(output), input, weight, bias, state, group);
}

}  // namespace convoy
