#include "strategies/parts/plain_layers.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>

#include "core/activation.h"
#include "core/error.h"
#include "core/large_tensor.h"
#include "core/log.h"
#include "core/model.h"
#include "strategies/parts/init.h"
#include "strategies/parts/keyed_dropout.h"
#include "strategies/parts/products/linear_function.h"
#include "strategies/parts/rows/row_table.h"
#include "strategies/parts/rows/row_tables.h"
#include "strategies/parts/swapped_storage.h"
#include "strategies/parts/synchronised_batch_norm.h"
#include "strategies/parts/whole_layers.h"

namespace convoy {
namespace {

using StatePtr = std::shared_ptr<const ForwardState>;

struct PlainLinear : LayerModule, ReluLayer {
  PlainLinear(ParameterPtr weight, ParameterPtr bias, StatePtr state)
      : weight_(std::move(weight)), bias_(std::move(bias)), state_(std::move(state)) {
    register_parameter("weight", weight_->value);
    if (bias_) register_parameter("bias", bias_->value);
  }
  at::Tensor forward(const at::Tensor& input) override { return convoy::linear(input, weight_, bias_, state_); }
  at::Tensor forward_relu(const at::Tensor& input) override {
    return convoy::linear(input, weight_, bias_, state_, true);
  }

 private:
  ParameterPtr weight_, bias_;
  StatePtr state_;
};

struct PlainEmbedding : LayerModule {
  explicit PlainEmbedding(const ParameterPtr& weight) : weight_(register_parameter("weight", weight->value)) {}
  at::Tensor forward(const at::Tensor& ids) override { return at::embedding(weight_, ids); }

 private:
  at::Tensor weight_;
};

struct PlainConv2d : LayerModule {
  PlainConv2d(const ParameterPtr& weight, const ParameterPtr& bias, const Conv2dOptions& options)
      : weight_(register_parameter("weight", weight->value)), options_(options) {
    if (bias) bias_ = register_parameter("bias", bias->value);
  }
  at::Tensor forward(const at::Tensor& input) override {
    return at::conv2d(input, weight_, bias_, at::IntArrayRef{options_.stride, options_.stride},
                      at::IntArrayRef{options_.padding, options_.padding}, at::IntArrayRef{1, 1}, options_.groups);
  }

 private:
  at::Tensor weight_, bias_;
  Conv2dOptions options_;
};

struct PlainLayerNorm : LayerModule {
  PlainLayerNorm(const ParameterPtr& weight, const ParameterPtr& bias, double eps)
      : weight_(register_parameter("weight", weight->value)),
        bias_(register_parameter("bias", bias->value)),
        eps_(eps) {}
  at::Tensor forward(const at::Tensor& input) override {
    return at::layer_norm(input, weight_.sizes(), weight_, bias_, eps_);
  }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

struct PlainBatchNorm : LayerModule {
  PlainBatchNorm(const ParameterPtr& weight, const ParameterPtr& bias, const at::Tensor& mean,
                 const at::Tensor& variance, double eps, double momentum, StatePtr state, CommunicatorPtr group,
                 std::string name)
      : weight_(register_parameter("weight", weight->value)),
        bias_(register_parameter("bias", bias->value)),
        mean_(register_buffer("running_mean", mean)),
        variance_(register_buffer("running_var", variance)),
        eps_(eps),
        momentum_(momentum),
        state_(std::move(state)),
        group_(std::move(group)),
        name_(std::move(name)) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (group_ && state_->training)
      return synchronised_batch_norm(input, weight_, bias_, mean_, variance_, momentum_, eps_, group_, name_);
    const bool training = state_->training && has_variance(input.numel(), input.size(1));
    return at::batch_norm(input, weight_, bias_, mean_, variance_, training, momentum_, eps_,
                          at::globalContext().userEnabledCuDNN());
  }

 private:
  at::Tensor weight_, bias_, mean_, variance_;
  double eps_, momentum_;
  StatePtr state_;
  CommunicatorPtr group_;
  std::string name_;
};

struct PlainDropout : LayerModule {
  PlainDropout(std::string name, double p, StatePtr state) : name_(std::move(name)), p_(p), state_(std::move(state)) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (!state_->training || p_ == 0) return input;
    return input.mul(dropout_mask(input, p_, name_, *state_));
  }

 private:
  std::string name_;
  double p_;
  StatePtr state_;
};

}  // namespace

ParameterPtr make_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape, const Init& init,
                            bool large) {
  check_sizes(name, shape);
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->counted = store.counts;
  const auto options = at::TensorOptions(store.dtype).device(store.device);
  parameter->value = store.deferred                   ? without_memory(shape, options)
                     : large && store.device.is_cpu() ? untouched_zeros(shape, store.dtype)
                                                      : at::empty(shape, options);
  const auto initial = [init, fans = fans_of(shape), seed = store.seed, name](const at::Tensor& out, int64_t first) {
    fill_initial(out, init, fans, seed, name, static_cast<uint64_t>(first));
  };
  if (store.deferred)
    parameter->initial = initial;
  else
    initial(parameter->value, 0);
  parameter->value.set_requires_grad(true);
  record_parameter(store, parameter);
  return parameter;
}

void record_parameter(LayerStore& store, const ParameterPtr& parameter) {
  if (!store.by_name.emplace(parameter->name, parameter).second)
    throw Error(Failure::config,
                convoy::str("model: two layers ask for the name ", parameter->name, "; names are unique"));
  store.parameters.push_back(parameter);
}

void check_sizes(const std::string& name, at::IntArrayRef shape) {
  for (int64_t size : shape)
    if (size < 0) throw Error(Failure::config, convoy::str("model: ", name, " was asked for with a size of ", size));
}

PlainLayers::PlainLayers(std::shared_ptr<LayerStore> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

std::shared_ptr<Layers> PlainLayers::scope(const std::string& name) {
  return std::make_shared<PlainLayers>(store_, prefix_ + name + ".");
}

std::string PlainLayers::name(const std::string& layer) const { return prefix_ + layer; }

ParameterPtr PlainLayers::make(const std::string& name, at::IntArrayRef shape, const Init& init) {
  return make_parameter(*store_, prefix_ + name, shape, init);
}

ParameterPtr PlainLayers::make_bias(const std::string& name, int64_t size, int64_t fan_in,
                                    const std::optional<Init>& init) {
  return make(name + ".bias", {size}, bias_init(fan_in, init));
}

namespace {

// What else uses a table needs all of it in every step.
void make_dense(Parameter& parameter, const std::string& user) {
  if (!parameter.table) return;
  if (parameter.table->blocks())
    throw Error(Failure::config,
                convoy::str(parameter.name, ": rows: sharded, and ", user,
                            " is tied to it and needs all rows in every step; ", "take rows: auto, or untie them"));
  if (parameter.table->host()) {
    // From here on each rank updates all of it by itself.
    at::NoGradGuard no_grad;
    const at::Tensor own = untouched_zeros(parameter.value.sizes(), parameter.value.scalar_type());
    parameter.initial(own, 0);
    parameter.initial = nullptr;
    parameter.value.set_data(own);
  }
  parameter.table = nullptr;
  log::warning(
      convoy::str(parameter.name, " is no row table: ", user, " is tied to it, and has a gradient of all rows"));
}

}  // namespace

ParameterPtr PlainLayers::tied(const std::string& name, const std::string& to, at::IntArrayRef shape) {
  const auto found = store_->by_name.find(to);
  if (found == store_->by_name.end() && store_->distant) return store_->distant(to, shape);
  if (found == store_->by_name.end()) fail_tie(prefix_ + name, to);
  make_dense(*found->second, prefix_ + name);
  check_tie(prefix_ + name, to, shape, found->second->value.sizes());
  return found->second;
}

at::Tensor PlainLayers::make_buffer(const std::string& name, int64_t size, double value) {
  at::Tensor buffer = at::full({size}, value, at::TensorOptions(store_->dtype).device(store_->device));
  store_->buffers.push_back({prefix_ + name, buffer});
  return buffer;
}

Layer PlainLayers::linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  ParameterPtr weight = options.tied_to.empty() ? make(name + ".weight", {out, in}, options.weight)
                                                : tied(name, options.tied_to, {out, in});
  if (options.tied_to.empty()) weight->products_only = true;
  ParameterPtr bias = options.bias ? make_bias(name, out, in, options.bias_init) : nullptr;
  return std::make_shared<PlainLinear>(std::move(weight), std::move(bias), store_->state);
}

Layer PlainLayers::embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) {
  const std::string weight = prefix_ + name + ".weight";
  if (!store_->rows && options.rows == EmbeddingOptions::Rows::rows)
    throw Error(Failure::config, convoy::str("model: ", prefix_, name,
                                             " asks for a row table, which this strategy does not have; "
                                             "leave it dense"));
  if (!store_->rows || !store_->rows->applies(weight, rows, options))
    return std::make_shared<PlainEmbedding>(make(name + ".weight", {rows, dim}, options.weight));
  return table_embedding(make_parameter(*store_, weight, {rows, dim}, options.weight, true), *store_);
}

Layer PlainLayers::conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                          const Conv2dOptions& options) {
  check_groups(prefix_ + name, in, out, options.groups);
  const int64_t inner = in / options.groups;
  ParameterPtr weight = make(name + ".weight", {out, inner, kernel, kernel}, options.weight);
  weight->products_only = true;
  ParameterPtr bias = options.bias ? make_bias(name, out, inner * kernel * kernel, std::nullopt) : nullptr;
  return std::make_shared<PlainConv2d>(weight, bias, options);
}

Layer PlainLayers::layer_norm(const std::string& name, int64_t dim, double eps) {
  ParameterPtr weight = make(name + ".weight", {dim}, {Init::Kind::ones, 0, 0});
  ParameterPtr bias = make(name + ".bias", {dim}, {Init::Kind::zeros, 0, 0});
  return std::make_shared<PlainLayerNorm>(weight, bias, eps);
}

Layer PlainLayers::batch_norm(const std::string& name, int64_t channels, double eps, double momentum) {
  ParameterPtr weight = make(name + ".weight", {channels}, {Init::Kind::ones, 0, 0});
  ParameterPtr bias = make(name + ".bias", {channels}, {Init::Kind::zeros, 0, 0});
  at::Tensor mean = make_buffer(name + ".running_mean", channels, 0);
  at::Tensor variance = make_buffer(name + ".running_var", channels, 1);
  return std::make_shared<PlainBatchNorm>(weight, bias, mean, variance, eps, momentum, store_->state,
                                          store_->batch_norm, prefix_ + name);
}

Layer PlainLayers::dropout(const std::string& name, double p) {
  check_dropout(prefix_ + name, p);
  return std::make_shared<PlainDropout>(prefix_ + name, p, store_->state);
}

std::unique_ptr<ParameterHandle> PlainLayers::parameter(const std::string& name, at::IntArrayRef shape,
                                                        const Init& init) {
  return std::make_unique<WholeParameter>(make(name, shape, init)->value);
}

at::Tensor PlainLayers::cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  const int64_t classes = logits.size(-1);
  return at::cross_entropy_loss(logits.reshape({-1, classes}), target.reshape({-1}), {}, at::Reduction::None)
      .view(target.sizes());
}

at::Tensor PlainLayers::target_rank(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor own = logits.gather(-1, target.unsqueeze(-1));
  return (logits >= own).sum(-1) - 1;
}

}  // namespace convoy
