#include "strategies/parts/tensor/sharded_linear.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>

#include "core/model.h"
#include "strategies/parts/tensor/sharded_product.h"

namespace convoy {
namespace {

class ColumnLinear : public LayerModule {
 public:
  ColumnLinear(LayerPlace place, ParameterPtr weight, ParameterPtr bias, const DimensionCut& outputs, bool gather)
      : place_(std::move(place)),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        outputs_(outputs),
        gather_(gather) {
    register_parameter("weight", weight_->value);
    if (bias_) register_parameter("bias", bias_->value);
  }
  at::Tensor forward(const at::Tensor& input) override {
    const bool shares = place_.passage().is_share_of_sequence(input);
    const at::Tensor output =
        column_product(input, weight_, bias_, place_.state, {place_.ranks(), place_.name, shares});
    if (gather_) return gathered_last(output, outputs_, place_.ranks(), place_.name);
    place_.passage().open(input, output, outputs_);
    return output;
  }

 private:
  LayerPlace place_;
  ParameterPtr weight_, bias_;
  DimensionCut outputs_;
  bool gather_;
};

class RowLinear : public LayerModule {
 public:
  RowLinear(LayerPlace place, ParameterPtr weight, ParameterPtr bias, const DimensionCut& inputs)
      : place_(std::move(place)), weight_(std::move(weight)), bias_(std::move(bias)), inputs_(inputs) {
    register_parameter("weight", weight_->value);
    if (bias_) register_parameter("bias", bias_->value);
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor own =
        input.size(-1) == inputs_.whole ? own_last(input, inputs_, place_.ranks(), "input of " + place_.name) : input;
    const bool shares = place_.passage().sum_becomes_shares(own);
    at::Tensor output = row_product(own, weight_, bias_, place_.state, {place_.ranks(), place_.name, shares});
    place_.passage().close(inputs_.whole);
    return output;
  }

 private:
  LayerPlace place_;
  ParameterPtr weight_, bias_;
  DimensionCut inputs_;
};

class WholeLinear : public LayerModule {
 public:
  WholeLinear(LayerPlace place, const Layer& inner, ParameterPtr weight, ParameterPtr bias)
      : place_(std::move(place)),
        inner_(register_module("whole", inner)),
        weight_(std::move(weight)),
        bias_(std::move(bias)) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!place_.passage().is_part(input)) return inner_->forward(input);
    return at::linear(input, to_parts(weight_->value, place_.ranks(), place_.name + ".weight"),
                      bias_ ? to_parts(bias_->value, place_.ranks(), place_.name + ".bias") : at::Tensor());
  }

 private:
  LayerPlace place_;
  Layer inner_;
  ParameterPtr weight_, bias_;
};

}  // namespace

Layer make_column_linear(const LayerPlace& place, const ParameterPtr& weight, const ParameterPtr& bias,
                         const DimensionCut& outputs, bool gather) {
  return std::make_shared<ColumnLinear>(place, weight, bias, outputs, gather);
}

Layer make_row_linear(const LayerPlace& place, const ParameterPtr& weight, const ParameterPtr& bias,
                      const DimensionCut& inputs) {
  return std::make_shared<RowLinear>(place, weight, bias, inputs);
}

Layer make_whole_linear(const LayerPlace& place, const Layer& inner, const ParameterPtr& weight,
                        const ParameterPtr& bias) {
  return std::make_shared<WholeLinear>(place, inner, weight, bias);
}

}  // namespace convoy
