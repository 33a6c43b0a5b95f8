#include "strategies/common/layers/default_layers.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <cmath>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/losses/losses.h"
#include "core/tensors/init.h"
#include "core/tensors/random.h"
#include "core/tensors/tensor_memory.h"
#include "strategies/common/layers/linear_function.h"
#include "strategies/common/memory/flat_parameters.h"

namespace convoy {
namespace {

at::Tensor drawn_fast(const at::Tensor& like, double p, uint64_t key) {
  at::Generator generator = at::globalContext().defaultGenerator(like.device()).clone();
  generator.set_current_seed(key);
  return at::empty_like(like, at::MemoryFormat::Contiguous).bernoulli_(1 - p, generator).mul_(1 / (1 - p));
}

}  // namespace

at::Tensor dropout_mask(const at::Tensor& like, double p, const std::string& name, const ForwardState& state,
                        const DropoutShard& cut) {
  CONVOY_CHECK(p > 0 && p < 1, "dropout ", name, " with p = ", p);
  at::NoGradGuard no_grad;
  state.drew = true;
  const auto threshold = uint32_t(std::min(65535.0, std::max(1.0, std::round(p * 65536))));
  if (!state.exact) {
    const std::string ranked = convoy::str(name, "@", state.rank);
    return drawn_fast(like, p, random_key(state.seed, ranked, uint64_t(state.step)));
  }
  at::ScalarType dtype = like.scalar_type();
  if (dtype != at::kDouble) dtype = at::kFloat;  // half-precision masks are rounded from float
  at::Tensor mask = at::empty(like.sizes(), at::TensorOptions(dtype));
  if (mask.numel() > 0) {
    if (state.rows <= 0 || mask.numel() % state.rows != 0)
      throw Error(Failure::training, "dropout ", name, ": ", mask.numel(), " elements of ", state.rows,
                  " rows; rows must stay the leading dimension of the input of dropout");
    const uint64_t key = random_key(state.seed, name, uint64_t(state.step), 1);
    // In a shard, each run of elements along the last dimension is a range of a longer run.
    const bool sharded = cut.whole > 0;
    const int64_t run = sharded ? mask.size(-1) : mask.numel(), before = state.first_row * (mask.numel() / state.rows);
    fill_dropout(mask, key, sharded ? before / run * cut.whole + cut.begin : before, run, cut.whole, threshold);
  }
  return mask.to(like.options());
}

namespace {

struct PlainLinear : WeightedLayer {
  PlainLinear(const Weights& weights, StatePtr state) : WeightedLayer(weights), state_(std::move(state)) {}
  at::Tensor forward(const at::Tensor& input) override { return convoy::linear(input, weight_, bias_, state_); }
  at::Tensor forward_relu(const at::Tensor& input) override {
    return convoy::linear(input, weight_, bias_, state_, true);
  }

 private:
  StatePtr state_;
};

struct PlainEmbedding : LayerModule {
  explicit PlainEmbedding(const ParameterPtr& weight) : weight_(register_parameter("weight", weight->value)) {}
  at::Tensor forward(const at::Tensor& ids) override { return at::embedding(weight_, ids); }

 private:
  at::Tensor weight_;
};

struct PlainConv2d : WeightedLayer {
  PlainConv2d(const Weights& weights, const Conv2dOptions& options) : WeightedLayer(weights), options_(options) {}
  at::Tensor forward(const at::Tensor& input) override {
    return at::conv2d(input, weight_->value, bias_ ? bias_->value : at::Tensor(),
                      at::IntArrayRef{options_.stride, options_.stride},
                      at::IntArrayRef{options_.padding, options_.padding}, at::IntArrayRef{1, 1}, options_.groups);
  }

 private:
  Conv2dOptions options_;
};

struct PlainLayerNorm : WeightedLayer {
  PlainLayerNorm(const Weights& weights, double eps) : WeightedLayer(weights), eps_(eps) {}
  at::Tensor forward(const at::Tensor& input) override {
    return at::layer_norm(input, weight_->value.sizes(), weight_->value, bias_->value, eps_);
  }

 private:
  double eps_;
};

struct PlainRmsNorm : WeightedLayer {
  PlainRmsNorm(const Weights& weights, double eps) : WeightedLayer(weights), eps_(eps) {}
  at::Tensor forward(const at::Tensor& input) override {
    return at::rms_norm(input, weight_->value.sizes(), weight_->value, eps_);
  }

 private:
  double eps_;
};

struct PlainBatchNorm : WeightedLayer {
  PlainBatchNorm(const Weights& weights, const at::Tensor& mean, const at::Tensor& variance, double eps,
                 double momentum, StatePtr state, BatchNormFunction shared, std::string name)
      : WeightedLayer(weights),
        mean_(register_buffer("running_mean", mean)),
        variance_(register_buffer("running_var", variance)),
        eps_(eps),
        momentum_(momentum),
        state_(std::move(state)),
        shared_(std::move(shared)),
        name_(std::move(name)) {}
  at::Tensor forward(const at::Tensor& input) override {
    if (shared_ && state_->training)
      return shared_(input, weight_->value, bias_->value, mean_, variance_, momentum_, eps_, name_);
    const bool training = state_->training && has_variance(input.numel(), input.size(1));
    return at::batch_norm(input, weight_->value, bias_->value, mean_, variance_, training, momentum_, eps_,
                          at::globalContext().userEnabledCuDNN());
  }

 private:
  at::Tensor mean_, variance_;
  double eps_, momentum_;
  StatePtr state_;
  BatchNormFunction shared_;
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
  const auto options = at::TensorOptions(store.dtype).device(store.device);
  ParameterPtr parameter = add_parameter(store, name,
                                         store.deferred                   ? without_memory(shape, options)
                                         : large && store.device.is_cpu() ? untouched_zeros(shape, store.dtype)
                                                                          : at::empty(shape, options));
  parameter->initial = initial_values(store, name, shape, init);
  if (!store.deferred) std::exchange(parameter->initial, nullptr)(parameter->value, 0);
  return parameter;
}

ParameterPtr add_parameter(LayerStore& store, const std::string& name, at::Tensor value) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->counted = store.counts;
  parameter->value = std::move(value);
  parameter->value.set_requires_grad(true);
  if (!store.by_name.emplace(name, parameter).second)
    throw Error(Failure::config, "model: two layers have the name ", name, "; names are unique");
  store.parameters.push_back(parameter);
  return parameter;
}

std::function<void(const at::Tensor& out, int64_t first)> initial_values(const LayerStore& store,
                                                                         const std::string& name, at::IntArrayRef shape,
                                                                         const Init& init) {
  return [init, fans = fans_of(shape), seed = store.seed, name](const at::Tensor& out, int64_t first) {
    fill_initial(out, init, fans, seed, name, uint64_t(first));
  };
}

void check_sizes(const std::string& name, at::IntArrayRef shape) {
  for (int64_t size : shape)
    if (size < 0) throw Error(Failure::config, "model: ", name, " has a size of ", size);
}

DefaultLayers::DefaultLayers(std::shared_ptr<LayerStore> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

std::shared_ptr<Layers> DefaultLayers::scope(const std::string& name) {
  return std::make_shared<DefaultLayers>(store_, prefix_ + name + ".");
}

std::vector<int64_t> DefaultLayers::with_members(at::IntArrayRef shape) const {
  std::vector<int64_t> whole = shape.vec();
  if (members() > 0) whole.insert(whole.begin(), members());
  return whole;
}

std::string DefaultLayers::name(const std::string& layer) const { return prefix_ + layer; }

ParameterPtr DefaultLayers::make(const std::string& name, at::IntArrayRef shape, const Init& init) {
  return make_parameter(*store_, prefix_ + name, shape, init);
}

namespace {

// Makes a sparse embedding dense because `user` needs the whole table in every step.
void make_dense(Parameter& parameter, const std::string& user) {
  if (!parameter.table) return;
  if (parameter.table->is_sharded())
    throw Error(Failure::config, parameter.name, ": rows: sharded, but ", user,
                " is tied to it and needs all rows in every step; set rows: auto, or untie them");
  if (parameter.table->is_shared()) {
    // After this, each rank updates the whole table itself.
    at::NoGradGuard no_grad;
    const at::Tensor own = untouched_zeros(parameter.value.sizes(), parameter.value.scalar_type());
    parameter.initial(own, 0);
    parameter.initial = nullptr;
    parameter.value.set_data(own);
  }
  parameter.table = nullptr;
  log::warning(
      convoy::str(parameter.name, " cannot be sparse: ", user, " is tied to it, and has a gradient of all rows"));
}

}  // namespace

ParameterPtr DefaultLayers::tied(const std::string& name, const std::string& to, at::IntArrayRef shape) {
  const auto found = store_->by_name.find(to);
  if (found == store_->by_name.end() && store_->distant) return store_->distant(to, shape);
  if (found == store_->by_name.end()) fail_tie(prefix_ + name, to);
  make_dense(*found->second, prefix_ + name);
  const at::IntArrayRef there = found->second->value.sizes();
  if (const auto wanted = with_members(shape); there != wanted)
    throw Error(Failure::config, "model: ", prefix_, name, " has a weight of ", wanted, " and is tied to ", to, " of ",
                there);
  return found->second;
}

at::Tensor DefaultLayers::make_buffer(const std::string& name, int64_t size, double value) {
  at::Tensor buffer = at::full(with_members(size), value, at::TensorOptions(store_->dtype).device(store_->device));
  store_->buffers.push_back({prefix_ + name, buffer});
  return buffer;
}

Weights DefaultLayers::linear_weights(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  ParameterPtr weight = options.tied_to.empty() ? make(name + ".weight", {out, in}, options.weight)
                                                : tied(name, options.tied_to, {out, in});
  if (options.tied_to.empty()) weight->products_only = true;
  return {weight, options.bias ? make(name + ".bias", {out}, bias_init(in, options.bias_init)) : nullptr};
}

Weights DefaultLayers::conv2d_weights(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                                      const Conv2dOptions& options) {
  if (options.groups < 1 || in % options.groups != 0 || out % options.groups != 0)
    throw Error(Failure::config, "model: ", prefix_, name, " has ", in, " and ", out, " channels, which ",
                options.groups, " groups do not divide");
  const int64_t inner = in / options.groups;
  ParameterPtr weight = make(name + ".weight", {out, inner, kernel, kernel}, options.weight);
  weight->products_only = true;
  return {weight,
          options.bias ? make(name + ".bias", {out}, bias_init(inner * kernel * kernel, std::nullopt)) : nullptr};
}

Weights DefaultLayers::norm_weights(const std::string& name, int64_t dim) {
  ParameterPtr weight = make(name + ".weight", {dim}, {Init::Kind::ones, 0, 0});
  return {weight, make(name + ".bias", {dim}, {Init::Kind::zeros, 0, 0})};
}

Layer DefaultLayers::linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
  return std::make_shared<PlainLinear>(linear_weights(name, in, out, options), store_->state);
}

Layer DefaultLayers::embedding(const std::string& name, int64_t rows, int64_t dim, const EmbeddingOptions& options) {
  const std::string weight = prefix_ + name + ".weight";
  if (!store_->rows && options.rows == EmbeddingOptions::Rows::rows)
    throw Error(Failure::config, "model: ", prefix_, name,
                " requests a sparse embedding, which this strategy does not support; "
                "leave it dense");
  if (!store_->rows || !store_->rows->applies(weight, rows, options))
    return std::make_shared<PlainEmbedding>(make(name + ".weight", {rows, dim}, options.weight));
  return store_->rows->layer(make_parameter(*store_, weight, {rows, dim}, options.weight, true), *store_);
}

Layer DefaultLayers::conv2d(const std::string& name, int64_t in, int64_t out, int64_t kernel,
                            const Conv2dOptions& options) {
  return std::make_shared<PlainConv2d>(conv2d_weights(name, in, out, kernel, options), options);
}

Layer DefaultLayers::layer_norm(const std::string& name, int64_t dim, double eps) {
  return std::make_shared<PlainLayerNorm>(norm_weights(name, dim), eps);
}

Layer DefaultLayers::rms_norm(const std::string& name, int64_t dim, double eps) {
  return std::make_shared<PlainRmsNorm>(Weights{make(name + ".weight", {dim}, {Init::Kind::ones, 0, 0}), nullptr}, eps);
}

Layer DefaultLayers::batch_norm(const std::string& name, int64_t channels, double eps, double momentum) {
  const Weights weights = norm_weights(name, channels);
  at::Tensor mean = make_buffer(name + ".running_mean", channels, 0);
  at::Tensor variance = make_buffer(name + ".running_var", channels, 1);
  return std::make_shared<PlainBatchNorm>(weights, mean, variance, eps, momentum, store_->state, store_->batch_norm,
                                          prefix_ + name);
}

Layer DefaultLayers::dropout(const std::string& name, double p) {
  check_dropout(prefix_ + name, p);
  return std::make_shared<PlainDropout>(prefix_ + name, p, store_->state);
}

std::unique_ptr<ParameterHandle> DefaultLayers::parameter(const std::string& name, at::IntArrayRef shape,
                                                          const Init& init) {
  return std::make_unique<WholeParameter>(make(name, shape, init)->value);
}

at::Tensor DefaultLayers::cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  const int64_t classes = logits.size(-1);
  return row_cross_entropy(logits.reshape({-1, classes}), target.reshape({-1})).view(target.sizes());
}

at::Tensor DefaultLayers::target_rank(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor own = logits.gather(-1, target.unsqueeze(-1));
  return (logits >= own).sum(-1) - 1;
}

void check_dropout(const std::string& name, double p) {
  if (!(p >= 0 && p < 1)) throw Error(Failure::config, "model: dropout ", name, " is ", p, ", not in [0, 1)");
}

void fail_tie(const std::string& name, const std::string& to) {
  throw Error(Failure::config, "model: ", name, " is tied to ", to, ", which no layer before it has made");
}

}  // namespace convoy
