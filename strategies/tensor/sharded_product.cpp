#include "strategies/tensor/sharded_product.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include <optional>

#include "strategies/common/layers/linear_function.h"
#include "strategies/tensor/group_functions.h"

namespace convoy {
namespace {

using torch::autograd::variable_list;

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> shape = sizes.vec();
  shape.back() = last;
  return shape;
}

class GroupProductNode : public ProductNode {
 public:
  GroupProductNode(const at::Tensor& input, ParameterPtr weight, ParameterPtr bias, StatePtr state, ProductGroup group)
      : ProductNode(input, std::move(weight), std::move(bias), std::move(state)), group_(std::move(group)) {}

 protected:
  // `output`: gradient of the output. `with_graph`: second derivatives will be needed.
  virtual void once(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                    variable_list& results) = 0;
  virtual void with_graph(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                          variable_list& results) = 0;

  void differentiate(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight,
                     variable_list& results) override {
    if (at::GradMode::is_enabled())
      with_graph(output, input, weight, results);
    else
      once(output, input, weight, results);
  }

  Communicator& ranks() const { return *group_.group; }
  std::string gradient_name() const { return "gradient of the input of " + group_.name; }

  ProductGroup group_;
};

class ColumnBackward : public GroupProductNode {
 public:
  using GroupProductNode::GroupProductNode;
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

class RowBackward : public GroupProductNode {
 public:
  using GroupProductNode::GroupProductNode;
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
  if (without_node(input, weight->value)) return column_by_functions(input, weight->value, bias_value, group);
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
  if (without_node(input, weight->value)) return row_by_functions(input, weight->value, bias_value, group);
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
