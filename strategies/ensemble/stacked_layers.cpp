#include "strategies/ensemble/stacked_layers.h"

#include <ATen/Context.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/stack.h>

#include "core/base/error.h"
#include "core/model.h"
#include "core/tensors/init.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/layers/linear_function.h"
#include "strategies/common/memory/flat_parameters.h"

namespace convoy {
namespace {

using StackPtr = std::shared_ptr<const Stack>;

void check_members(const at::Tensor& input, int64_t members, const std::string& layer) {
  if (input.dim() > 1 && input.size(0) == members) return;
  throw Error(Failure::config, layer, " of a stack of ", members, " members was given ", input.sizes(),
              ": members come before rows. Blocks count dimensions from the end; set strategy.how: "
              "processes for one that does not");
}

// Applies `each` to every member's slice and stacks the K results.
template <class Each>
at::Tensor each_member(const at::Tensor& input, const Each& each) {
  const std::vector<at::Tensor> inputs = input.unbind(0);
  std::vector<at::Tensor> outputs;
  outputs.reserve(inputs.size());
  for (size_t member = 0; member < inputs.size(); ++member) outputs.push_back(each(inputs[member], member));
  return at::stack(outputs);
}

// [K, B, C, …] → [B, K·C, …], with members as groups of channels; and back.
at::Tensor members_as_channels(const at::Tensor& input) { return input.transpose(0, 1).flatten(1, 2); }
at::Tensor channels_as_members(const at::Tensor& input, int64_t members) {
  return input.unflatten(1, {members, input.size(1) / members}).transpose(0, 1);
}

struct StackedLinear : WeightedLayer {
  StackedLinear(std::string name, const Weights& weights, StatePtr state)
      : WeightedLayer(weights), name_(std::move(name)), state_(std::move(state)) {}
  at::Tensor forward(const at::Tensor& input) override {
    check_members(input, weight_->value.size(0), name_);
    return convoy::linear(input, weight_, bias_, state_);
  }
  at::Tensor forward_relu(const at::Tensor& input) override {
    check_members(input, weight_->value.size(0), name_);
    return convoy::linear(input, weight_, bias_, state_, true);
  }

 private:
  std::string name_;
  StatePtr state_;
};

struct StackedEmbedding : LayerModule {
  StackedEmbedding(std::string name, const ParameterPtr& weight)
      : name_(std::move(name)), weight_(register_parameter("weight", weight->value)) {}
  at::Tensor forward(const at::Tensor& ids) override {
    check_members(ids, weight_.size(0), name_);
    // One unbind for all members, so that backward stacks the gradient once.
    const std::vector<at::Tensor> weights = weight_.unbind(0);
    return each_member(ids, [&](const at::Tensor& own, size_t member) { return at::embedding(weights[member], own); });
  }

 private:
  std::string name_;
  at::Tensor weight_;
};

struct StackedConv2d : WeightedLayer {
  StackedConv2d(std::string name, const Weights& weights, const Conv2dOptions& options, bool grouped)
      : WeightedLayer(weights), name_(std::move(name)), options_(options), grouped_(grouped) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor& weight = weight_->value;
    const int64_t members = weight.size(0);
    check_members(input, members, name_);
    if (grouped_) {
      const at::Tensor bias = bias_ ? bias_->value.flatten() : at::Tensor();
      return channels_as_members(run(members_as_channels(input), weight.flatten(0, 1), bias, members), members);
    }
    const std::vector<at::Tensor> weights = weight.unbind(0);
    std::vector<at::Tensor> biases(weights.size());
    if (bias_) biases = bias_->value.unbind(0);
    return each_member(input, [&](const at::Tensor& own, size_t m) { return run(own, weights[m], biases[m], 1); });
  }

 private:
  at::Tensor run(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, int64_t members) const {
    return at::conv2d(input, weight, bias, at::IntArrayRef{options_.stride, options_.stride},
                      at::IntArrayRef{options_.padding, options_.padding}, at::IntArrayRef{1, 1},
                      options_.groups * members);
  }

  std::string name_;
  Conv2dOptions options_;
  bool grouped_;
};

// Common to norms whose weight is [K, dim].
struct StackedNorm : WeightedLayer {
  StackedNorm(std::string name, const Weights& weights, double eps)
      : WeightedLayer(weights), name_(std::move(name)), eps_(eps) {}

 protected:
  // Checks the input; returns [K, 1, …, dim], which broadcasts against it.
  std::vector<int64_t> shape_for(const at::Tensor& input) const {
    const at::Tensor& weight = weight_->value;
    check_members(input, weight.size(0), name_);
    std::vector<int64_t> shape(size_t(input.dim()), 1);
    shape.front() = weight.size(0);
    shape.back() = weight.size(1);
    return shape;
  }

  std::string name_;
  double eps_;
};

struct StackedLayerNorm : StackedNorm {
  using StackedNorm::StackedNorm;
  at::Tensor forward(const at::Tensor& input) override {
    const std::vector<int64_t> shape = shape_for(input);
    const at::Tensor even = at::layer_norm(input, {shape.back()}, {}, {}, eps_);
    return at::addcmul(bias_->value.reshape(shape), even, weight_->value.reshape(shape));
  }
};

struct StackedRmsNorm : StackedNorm {
  using StackedNorm::StackedNorm;
  at::Tensor forward(const at::Tensor& input) override {
    const std::vector<int64_t> shape = shape_for(input);
    return at::rms_norm(input, {shape.back()}, {}, eps_) * weight_->value.reshape(shape);
  }
};

struct StackedBatchNorm : WeightedLayer {
  StackedBatchNorm(std::string name, const Weights& weights, const at::Tensor& mean, const at::Tensor& variance,
                   double eps, double momentum, StatePtr state, bool grouped)
      : WeightedLayer(weights),
        name_(std::move(name)),
        mean_(register_buffer("running_mean", mean)),
        variance_(register_buffer("running_var", variance)),
        eps_(eps),
        momentum_(momentum),
        state_(std::move(state)),
        grouped_(grouped) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor &weight = weight_->value, &bias = bias_->value;
    const int64_t members = weight.size(0);
    check_members(input, members, name_);
    const bool training = state_->training && has_variance(input.numel(), members * input.size(2));
    if (grouped_)
      return channels_as_members(run(members_as_channels(input), weight.flatten(), bias.flatten(), mean_.view({-1}),
                                     variance_.view({-1}), training),
                                 members);
    const std::vector<at::Tensor> weights = weight.unbind(0), biases = bias.unbind(0);
    return each_member(input, [&](const at::Tensor& own, size_t m) {
      const auto member = int64_t(m);
      return run(own, weights[m], biases[m], mean_.select(0, member), variance_.select(0, member), training);
    });
  }

 private:
  at::Tensor run(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                 const at::Tensor& variance, bool training) const {
    return at::batch_norm(input, weight, bias, mean, variance, training, momentum_, eps_,
                          at::globalContext().userEnabledCuDNN());
  }

  std::string name_;
  at::Tensor mean_, variance_;
  double eps_, momentum_;
  StatePtr state_;
  bool grouped_;
};

struct StackedDropout : LayerModule {
  StackedDropout(std::string name, double p, StatePtr state, StackPtr stack)
      : name_(std::move(name)), p_(p), state_(std::move(state)), stack_(std::move(stack)) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!state_->training || p_ == 0) return input;
    check_members(input, stack_->members(), name_);
    std::vector<at::Tensor> masks;
    ForwardState own = *state_;
    for (int64_t member = 0; member < stack_->members(); ++member) {
      own.seed = stack_->seeds[size_t(member)];
      masks.push_back(dropout_mask(input.select(0, member), p_, name_, own));
    }
    return input.mul(at::stack(masks));
  }

 private:
  std::string name_;
  double p_;
  StatePtr state_;
  StackPtr stack_;
};

}  // namespace

StackedLayers::StackedLayers(std::shared_ptr<LayerStore> store, std::shared_ptr<Stack> stack, std::string prefix)
    : DefaultLayers(std::move(store), std::move(prefix)), stack_(std::move(stack)) {}

std::shared_ptr<Layers> StackedLayers::scope(const std::string& name) {
  return std::make_shared<StackedLayers>(store_, stack_, prefix_ + name + ".");
}

ParameterPtr StackedLayers::make(const std::string& name, at::IntArrayRef shape, const Init& init) {
  check_sizes(prefix_ + name, shape);
  const auto options = at::TensorOptions(store_->dtype).device(store_->device);
  ParameterPtr parameter = add_parameter(*store_, prefix_ + name, without_memory(with_members(shape), options));
  stack_->parameters.push_back({parameter, shape.vec(), init});
  return parameter;
}

Layer StackedLayers::linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  return std::make_shared<StackedLinear>(prefix_ + name, linear_weights(name, in, out, options), store_->state);
}

Layer StackedLayers::embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) {
  if (options.rows == EmbeddingOptions::Rows::rows)
    throw Error(Failure::config, "model: ", prefix_, name,
                " requests a sparse embedding, which this strategy does not support; "
                "leave it dense");
  return std::make_shared<StackedEmbedding>(prefix_ + name, make(name + ".weight", {rows, dim}, options.weight));
}

Layer StackedLayers::conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                            const Conv2dOptions& options) {
  const Weights weights = conv2d_weights(name, in, out, kernel, options);
  stack_->convolves = true;
  return std::make_shared<StackedConv2d>(prefix_ + name, weights, options, stack_->grouped);
}

Layer StackedLayers::layer_norm(const std::string& name, int64_t dim, double eps) {
  return std::make_shared<StackedLayerNorm>(prefix_ + name, norm_weights(name, dim), eps);
}

Layer StackedLayers::rms_norm(const std::string& name, int64_t dim, double eps) {
  const Weights weights{make(name + ".weight", {dim}, {Init::Kind::ones, 0, 0}), nullptr};
  return std::make_shared<StackedRmsNorm>(prefix_ + name, weights, eps);
}

Layer StackedLayers::batch_norm(const std::string& name, int64_t channels, double eps, double momentum) {
  const Weights weights = norm_weights(name, channels);
  at::Tensor mean = make_buffer(name + ".running_mean", channels, 0);
  at::Tensor variance = make_buffer(name + ".running_var", channels, 1);
  return std::make_shared<StackedBatchNorm>(prefix_ + name, weights, mean, variance, eps, momentum, store_->state,
                                            stack_->grouped);
}

Layer StackedLayers::dropout(const std::string& name, double p) {
  check_dropout(prefix_ + name, p);
  return std::make_shared<StackedDropout>(prefix_ + name, p, store_->state, stack_);
}

}  // namespace convoy
