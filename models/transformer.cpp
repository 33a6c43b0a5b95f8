// gpt and llama: decoder-only transformers with a norm before attention and MLP.
//
//   tokens [.., B, T] → embedding → blocks → norm → logits [.., B, T, vocabulary]
//   block: h + attention(norm(h)), then h + mlp(norm(h))
//
// Parameters, by block: "embedding.tokens", "embedding.positions" (learned positions); "blocks.N.attention_norm",
// "qkv", "projection", "mlp_norm", "up" (gated: "gate_up"), "down"; "output.norm", "output.linear" (unless tied).
// Rows of qkv: all queries, all keys, all values. With fewer keys than queries, for each key head: its queries, the
// key, the value. So each rank of a tensor group gets key heads together with their queries. Rows of gate_up: the gate,
// then the values that it scales.
#include "models/transformer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "core/tensors/products.h"
#include "models/catalogue/catalogue.h"
#include "models/common.h"
#include "models/registry.h"

namespace convoy {

// --- Attention, blocks and models ---

at::Tensor Rotary::operator()(const at::Tensor& x) {
  const int64_t length = x.size(-2);
  if (!cosine_.defined() || cosine_.size(0) != length || cosine_.scalar_type() != x.scalar_type() ||
      cosine_.device() != x.device()) {
    at::NoGradGuard no_grad;
    const at::Tensor power = at::arange(size_ / 2, at::kDouble) * (-2.0 / double(size_));
    const at::Tensor angle =
        at::arange(length, at::kDouble).unsqueeze(-1) * at::pow(at::Scalar(base_), power).unsqueeze(0);
    cosine_ = angle.cos().to(x.options());
    sine_ = angle.sin().to(x.options());
  }
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cosine_ - halves[1] * sine_, halves[1] * cosine_ + halves[0] * sine_}, -1);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Layer& dropout,
                            at::IntArrayRef rows, int64_t groups) {
  if (!dropout) return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  const int64_t length = q.size(-2);
  const at::Tensor future = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(double(q.size(-1)));
  at::Tensor weights = scores.masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(-1);
  // Drawn as [.., B, heads · T · T]: rows lead, and this rank's heads are one range of the last dimension, like a shard
  // of any layer's output.
  std::vector<int64_t> shape = rows.vec();
  shape.push_back(groups * q.size(1) * length * length);
  weights = dropout->forward(weights.reshape(shape)).reshape(weights.sizes());
  return weights.matmul(v);
}

at::Tensor self_attention(const at::Tensor& qkv, int64_t head_size, Rotary* rotary, const Layer& dropout) {
  const int64_t width = qkv.size(-1) / 3;  // width of this rank's heads
  if (qkv.dim() < 3 || qkv.size(-1) != 3 * width || width % head_size != 0)
    throw Error(Failure::config, "attention takes queries, keys and values [B, T, 3 × width] with heads of ", head_size,
                ", and was given ", qkv.sizes());
  const auto rows = qkv.sizes().slice(0, size_t(qkv.dim() - 2));
  const int64_t length = qkv.size(-2);
  // [.., B, T, 3 · width] → three of [N, heads, T, head_size]: the fused kernel needs four dimensions.
  const auto qkv_heads =
      qkv.flatten(0, -3).unflatten(-1, {3, width / head_size, head_size}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor q = rotary != nullptr ? (*rotary)(qkv_heads[0]) : qkv_heads[0];
  const at::Tensor k = rotary != nullptr ? (*rotary)(qkv_heads[1]) : qkv_heads[1];
  std::vector<int64_t> shape = rows.vec();
  shape.insert(shape.end(), {length, width});
  return causal_attention(q, k, qkv_heads[2], dropout, rows).transpose(-2, -3).reshape(shape);
}

at::Tensor grouped_attention(const at::Tensor& qkv, int64_t head_size, int64_t queries, Rotary* rotary,
                             const Layer& dropout) {
  const int64_t group = (queries + 2) * head_size, groups = qkv.size(-1) / group;
  if (qkv.dim() < 3 || qkv.size(-1) != groups * group)
    throw Error(Failure::config, "attention takes groups of ", queries, " queries, a key and a value with heads of ",
                head_size, ", and was given ", qkv.sizes());
  const auto rows = qkv.sizes().slice(0, size_t(qkv.dim() - 2));
  const int64_t length = qkv.size(-2);
  // [.., B, T, groups · group] → [N, groups, queries + 2, T, head_size]
  const at::Tensor heads = qkv.flatten(0, -3).unflatten(-1, {groups, queries + 2, head_size}).permute({0, 2, 3, 1, 4});
  const auto turned = [&](const at::Tensor& x) { return (rotary != nullptr ? (*rotary)(x) : x).flatten(0, 1); };
  // A group is a row of the fused kernel. Its key and value have a stride of 0 between its heads.
  const auto shared = [&](const at::Tensor& x) { return x.expand({-1, queries, -1, -1}); };
  const at::Tensor q = turned(heads.narrow(2, 0, queries));
  const at::Tensor k = shared(turned(heads.narrow(2, queries, 1)));
  const at::Tensor v = shared(heads.narrow(2, queries + 1, 1).flatten(0, 1));
  const at::Tensor attended = causal_attention(q, k, v, dropout, rows, groups);  // [N · groups, queries, T, head_size]
  std::vector<int64_t> shape = rows.vec();
  shape.insert(shape.end(), {length, groups * queries * head_size});
  return attended.unflatten(0, {-1, groups}).permute({0, 3, 1, 2, 4}).reshape(shape);
}

namespace {

constexpr const char* tokens_name = "tokens";  // name of the embedding; a tied output refers to it
constexpr double deviation = 0.02;             // standard deviation of initial values, as in GPT-2

using Cut = LinearOptions::Cut;

LinearOptions linear_options(Cut cut, bool bias, double standard_deviation) {
  LinearOptions options;
  options.weight = {Init::Kind::normal, 0, standard_deviation};
  options.bias = bias;
  options.bias_init = Init{Init::Kind::zeros, 0, 0};
  options.cut = cut;
  return options;
}

Layer norm_of(Layers& layers, const std::string& name, const TransformerSizes& sizes) {
  return sizes.rms_norm ? layers.rms_norm(name, sizes.dim, sizes.norm_eps)
                        : layers.layer_norm(name, sizes.dim, sizes.norm_eps);
}

// tokens [.., B, T] int64 → [.., B, T, dim]
class TokenEmbeddingBlock : public Block {
 public:
  TokenEmbeddingBlock(Layers& layers, const TransformerSizes& sizes) : context_(sizes.context) {
    EmbeddingOptions options;
    options.weight = {Init::Kind::normal, 0, deviation};
    options.rows = sizes.rows;
    options.lookups = sizes.length;
    tokens_ = register_module("tokens", layers.embedding(tokens_name, sizes.vocabulary, sizes.dim, options));
    if (!sizes.rotary) positions_ = layers.parameter("positions", {sizes.context, sizes.dim}, options.weight);
    if (sizes.dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", sizes.dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    at::Tensor h = tokens_->forward(inputs[0]);
    if (positions_) {
      const int64_t length = h.size(-2);
      if (length > context_)
        throw Error(Failure::config, "the data set gave a sequence of ", length, " tokens, and the model has ",
                    context_, " positions");
      h = h + positions_->get().narrow(-2, 0, length).unsqueeze(-3);  // a member dimension stays before rows
    }
    return {dropout_ ? dropout_->forward(h) : h};
  }

 private:
  int64_t context_;
  Layer tokens_;
  std::unique_ptr<ParameterHandle> positions_;
  Layer dropout_;
};

// [.., B, T, dim] → the same shape
class TransformerBlock : public Block {
 public:
  TransformerBlock(Layers& layers, const TransformerSizes& sizes) : sizes_(sizes) {
    const int64_t dim = sizes.dim;
    // Every block adds twice to the residual stream; this scale keeps the variance of the sum independent of depth.
    const double residual = deviation / std::sqrt(2.0 * double(sizes.layers));
    const auto linear = [&](const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
      return register_module(name, layers.linear(name, in, out, options));
    };
    LinearOptions qkv = linear_options(Cut::column, sizes.bias, deviation);
    LinearOptions up = qkv;
    qkv.parts = sizes.key_heads > 0 ? 1 : 3;
    qkv.row_inputs = dim;
    up.parts = sizes.gated ? 2 : 1;
    const LinearOptions down = linear_options(Cut::row, sizes.bias, residual);
    const int64_t keys = sizes.key_heads > 0 ? sizes.key_heads : sizes.heads;
    attention_norm_ = register_module("attention_norm", norm_of(layers, "attention_norm", sizes));
    qkv_ = linear("qkv", dim, (sizes.heads + 2 * keys) * sizes.head_size(), qkv);
    projection_ = linear("projection", dim, dim, down);
    mlp_norm_ = register_module("mlp_norm", norm_of(layers, "mlp_norm", sizes));
    up_ = linear(sizes.gated ? "gate_up" : "up", dim, up.parts * sizes.mlp, up);
    down_ = linear("down", sizes.mlp, dim, down);
    if (sizes.rotary) rotary_ = std::make_unique<Rotary>(sizes.head_size(), sizes.rotary_base);
    if (sizes.attention_dropout > 0) {
      weights_dropout_ = register_module("weights_dropout", layers.dropout("weights_dropout", sizes.attention_dropout));
    }
    if (sizes.dropout > 0) {
      attention_dropout_ = register_module("attention_dropout", layers.dropout("attention_dropout", sizes.dropout));
      mlp_dropout_ = register_module("mlp_dropout", layers.dropout("mlp_dropout", sizes.dropout));
    }
  }
  TensorList forward(const TensorList& inputs) override {
    at::Tensor h = inputs[0];
    const at::Tensor attended = projection_->forward(attention(qkv_->forward(attention_norm_->forward(h))));
    h = h + (attention_dropout_ ? attention_dropout_->forward(attended) : attended);
    const at::Tensor out = down_->forward(hidden(up_->forward(mlp_norm_->forward(h))));
    return {h + (mlp_dropout_ ? mlp_dropout_->forward(out) : out)};
  }

 private:
  at::Tensor attention(const at::Tensor& qkv) {
    if (sizes_.key_heads == 0) return self_attention(qkv, sizes_.head_size(), rotary_.get(), weights_dropout_);
    return grouped_attention(qkv, sizes_.head_size(), sizes_.heads / sizes_.key_heads, rotary_.get(), weights_dropout_);
  }
  at::Tensor hidden(const at::Tensor& up) const {
    if (!sizes_.gated) return apply_activation(up, sizes_.activation);
    const auto halves = up.chunk(2, -1);
    return apply_activation(halves[0], sizes_.activation) * halves[1];
  }

  TransformerSizes sizes_;
  Layer attention_norm_, qkv_, projection_, mlp_norm_, up_, down_;
  Layer weights_dropout_, attention_dropout_, mlp_dropout_;
  std::unique_ptr<Rotary> rotary_;
};

// [.., B, T, dim] → logits [.., B, T, vocabulary], sharded by vocabulary in a tensor group: loss and accuracy come from
// Layers.
class TokenOutputBlock : public Block {
 public:
  TokenOutputBlock(Layers& layers, const TransformerSizes& sizes, const std::string& embedding) {
    LinearOptions options = linear_options(Cut::column, false, deviation);
    if (sizes.tied) options.tied_to = embedding;
    norm_ = register_module("norm", norm_of(layers, "norm", sizes));
    linear_ = register_module("linear", layers.linear("linear", sizes.dim, sizes.vocabulary, options));
  }
  TensorList forward(const TensorList& inputs) override { return {linear_->forward(norm_->forward(inputs[0]))}; }

 private:
  Layer norm_, linear_;
};

class Transformer : public Model {
 public:
  explicit Transformer(const TransformerSizes& sizes) : sizes_(sizes) {}

  int64_t blocks() const override { return sizes_.layers + 2; }
  std::string block_name(int64_t index) const override {
    if (index == 0) return "embedding";
    return index == blocks() - 1 ? "output" : str("blocks.", index - 1);
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    if (index == 0) return std::make_shared<TokenEmbeddingBlock>(layers, sizes_);
    if (index < blocks() - 1) return std::make_shared<TransformerBlock>(layers, sizes_);
    return std::make_shared<TokenOutputBlock>(layers, sizes_, str(block_name(0), ".", tokens_name, ".weight"));
  }

  TensorList inputs(const Batch& batch) const override { return {batch.at("tokens")}; }
  std::string default_loss() const override { return "cross_entropy"; }
  // Accuracy over tokens: each position counts like a row.
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    const at::Tensor& target = batch.at("target");
    at::Tensor weight;
    if (const at::Tensor* given = batch.find("weight")) {
      weight = (given->dim() < target.dim() ? given->unsqueeze(-1) : *given).expand_as(target).flatten(-2);
    }
    return {accuracy(outputs[0].flatten(-3, -2), target.flatten(-2), weight, layers)};
  }
  std::unique_ptr<TokenDecoder> decoder(const ParameterValues& values) const override {
    return make_transformer_decoder(sizes_, values);
  }

 private:
  TransformerSizes sizes_;
};

// Sizes that both models read from the data and from options of the same name. Throws Error(config) unless the data set
// has rows of tokens with a target each; `model` is for messages.
TransformerSizes transformer_sizes(const Options& options, const Schema& schema, const std::string& model) {
  const std::string asked_by = "model " + model;
  const Field& tokens = schema.at("tokens", asked_by);
  const Field& target = schema.at("target", asked_by);
  if (tokens.shape.size() != 1 || tokens.cardinality < 1 || target.shape != tokens.shape || target.cardinality < 1)
    throw Error(Failure::config, asked_by,
                " takes rows of tokens with as many targets, both numbers of a vocabulary, and this data set "
                "has others; choose data: {name: text}");
  if (target.cardinality != tokens.cardinality)
    throw Error(Failure::config, asked_by, ": this data set has tokens of ", tokens.cardinality,
                " kinds and targets of ", target.cardinality, "; they have to be the same");
  TransformerSizes sizes;
  sizes.vocabulary = tokens.cardinality;
  sizes.length = sizes.context = tokens.shape[0];
  sizes.layers = options.integer("layers");
  sizes.heads = options.integer("heads");
  sizes.dim = options.integer("dim");
  sizes.rotary_base = options.real("rotary_base");
  sizes.tied = options.boolean("tied");
  sizes.dropout = options.real("dropout");
  sizes.attention_dropout = options.real("attention_dropout");
  sizes.norm_eps = options.real("norm_eps");
  sizes.rows = rows_of(options);
  return sizes;
}

}  // namespace

ModelPtr make_gpt(const Options& options, const Schema& schema) {
  TransformerSizes sizes = transformer_sizes(options, schema, "gpt");
  gpt_entry().check(options);
  sizes.mlp = gpt_mlp_dim(options);
  sizes.rotary = options.text("positions") == "rotary";
  if (options.has("context")) {
    sizes.context = options.integer("context");
    if (sizes.context < sizes.length)
      throw Error(Failure::config, "model gpt: context is ", sizes.context, ", and the data set has sequences of ",
                  sizes.length, " tokens; take a context of at least that, or a smaller data.length");
  }
  sizes.bias = options.boolean("bias");
  sizes.activation = options.text("activation");
  return std::make_shared<Transformer>(sizes);
}

ModelPtr make_llama(const Options& options, const Schema& schema) {
  TransformerSizes sizes = transformer_sizes(options, schema, "llama");
  llama_entry().check(options);
  sizes.key_heads = llama_key_heads(options);
  sizes.mlp = llama_mlp_dim(options);
  sizes.rotary = true;
  sizes.bias = false;
  sizes.rms_norm = true;
  sizes.gated = true;
  sizes.activation = "silu";
  return std::make_shared<Transformer>(sizes);
}

// --- Decoder: the same formulas as the blocks, for new tokens only ---
//
// Keys and values of earlier tokens are in a cache of 2 · layers · key heads · context · head size numbers. One new
// token is a chain of products of a matrix and a vector; each reads its weights once. Several new tokens, such as a
// prompt, share each read by a matrix product.

namespace {

// A linear layer: weight [out, in] and bias [out], which may be undefined.
struct DecoderLinear {
  at::Tensor weight, bias;

  // inputs [count, in] → [count, out]
  at::Tensor operator()(const at::Tensor& inputs) const { return linear_product(inputs, weight, bias); }
};

struct DecoderNorm {
  at::Tensor weight, bias;  // bias undefined: RMS norm
  double eps = 0;

  at::Tensor operator()(const at::Tensor& inputs) const {
    at::Tensor out = at::empty(inputs.sizes(), at::kFloat);
    const int64_t dim = inputs.size(-1);
    const float* scale = weight.const_data_ptr<float>();
    const float* shift = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    for (int64_t row = 0; row < inputs.size(0); ++row) {
      const float* x = inputs.const_data_ptr<float>() + row * dim;
      float* y = out.mutable_data_ptr<float>() + row * dim;
      double mean = 0, squares = 0;
      for (int64_t i = 0; shift != nullptr && i < dim; ++i) mean += double(x[i]);
      mean /= double(dim);
      for (int64_t i = 0; i < dim; ++i) squares += (double(x[i]) - mean) * (double(x[i]) - mean);
      const auto inverse = float(1 / std::sqrt(squares / double(dim) + eps));
      for (int64_t i = 0; i < dim; ++i)
        y[i] = (x[i] - float(mean)) * inverse * scale[i] + (shift == nullptr ? 0.0F : shift[i]);
    }
    return out;
  }
};

struct DecoderBlock {
  DecoderNorm attention_norm, mlp_norm;
  DecoderLinear qkv, projection, up, down;
  at::Tensor keys, values;  // [key heads, context, head size]
};

class TransformerDecoder : public TokenDecoder {
 public:
  TransformerDecoder(const TransformerSizes& sizes, const ParameterValues& values)
      : sizes_(sizes), key_heads_(sizes.key_heads > 0 ? sizes.key_heads : sizes.heads) {
    const at::NoGradGuard no_grad;
    const auto get = [&](const std::string& name) { return values(name).to(at::kCPU, at::kFloat).contiguous(); };
    const auto linear = [&](const std::string& name, bool bias) {
      return DecoderLinear{get(name + ".weight"), bias ? get(name + ".bias") : at::Tensor()};
    };
    const auto norm = [&](const std::string& name) {
      return DecoderNorm{get(name + ".weight"), sizes.rms_norm ? at::Tensor() : get(name + ".bias"), sizes.norm_eps};
    };
    tokens_ = get("embedding.tokens.weight");
    if (!sizes.rotary) positions_ = get("embedding.positions");
    for (int64_t layer = 0; layer < sizes.layers; ++layer) {
      const std::string block = str("blocks.", layer, ".");
      const std::vector<int64_t> cache{key_heads_, sizes.context, sizes.head_size()};
      blocks_.push_back(
          {norm(block + "attention_norm"), norm(block + "mlp_norm"), linear(block + "qkv", sizes.bias),
           linear(block + "projection", sizes.bias), linear(block + (sizes.gated ? "gate_up" : "up"), sizes.bias),
           linear(block + "down", sizes.bias), at::zeros(cache, at::kFloat), at::zeros(cache, at::kFloat)});
    }
    norm_ = norm("output.norm");
    output_.weight = sizes.tied ? tokens_ : get("output.linear.weight");
    if (sizes.rotary) make_angles();
  }

  int64_t vocabulary() const override { return sizes_.vocabulary; }
  int64_t context() const override { return sizes_.context; }
  int64_t length() const override { return length_; }
  void clear() override { length_ = 0; }

  const float* append(const int64_t* tokens, int64_t count) override {
    const at::NoGradGuard no_grad;
    CONVOY_CHECK(count > 0 && length_ + count <= sizes_.context, count, " tokens do not fit after ", length_);
    at::Tensor h = embedded(tokens, count);
    for (DecoderBlock& block : blocks_) {
      h += block.projection(attended(block, block.qkv(block.attention_norm(h))));
      h += block.down(hidden(block.up(block.mlp_norm(h))));
    }
    length_ += count;
    logits_ = output_(norm_(h.narrow(0, count - 1, 1)));
    return logits_.const_data_ptr<float>();
  }

 private:
  at::Tensor embedded(const int64_t* tokens, int64_t count) const {
    const int64_t dim = sizes_.dim;
    at::Tensor h = at::empty({count, dim}, at::kFloat);
    for (int64_t i = 0; i < count; ++i) {
      if (tokens[i] < 0 || tokens[i] >= sizes_.vocabulary)
        throw Error(Failure::config, "token ", tokens[i], " is not one of the model's ", sizes_.vocabulary);
      const float* token = tokens_.const_data_ptr<float>() + tokens[i] * dim;
      float* to = h.mutable_data_ptr<float>() + i * dim;
      std::copy_n(token, dim, to);
      if (sizes_.rotary) continue;
      const float* position = positions_.const_data_ptr<float>() + (length_ + i) * dim;
      for (int64_t k = 0; k < dim; ++k) to[k] += position[k];
    }
    return h;
  }

  at::Tensor hidden(const at::Tensor& up) const {
    if (!sizes_.gated) return apply_activation(up, sizes_.activation);
    return apply_activation(up.narrow(-1, 0, sizes_.mlp), sizes_.activation) * up.narrow(-1, sizes_.mlp, sizes_.mlp);
  }

  // Return offsets in a row of qkv: of query head `head`, and of the key and the value of key head `head`.
  int64_t query_at(int64_t head) const {
    const int64_t size = sizes_.head_size(), queries = sizes_.heads / key_heads_;
    if (sizes_.key_heads == 0) return head * size;
    return (head / queries * (queries + 2) + head % queries) * size;
  }
  int64_t key_at(int64_t head) const {
    const int64_t size = sizes_.head_size(), queries = sizes_.heads / key_heads_;
    return sizes_.key_heads == 0 ? (sizes_.heads + head) * size : (head * (queries + 2) + queries) * size;
  }
  int64_t value_at(int64_t head) const {
    return key_at(head) + (sizes_.key_heads == 0 ? sizes_.heads : 1) * sizes_.head_size();
  }

  // Writes x [size], turned by the angles of `position` (models/transformer.h), to `to`.
  void turn(const float* x, int64_t position, float* to) const {
    const int64_t size = sizes_.head_size(), half = size / 2;
    if (!sizes_.rotary) {
      std::copy_n(x, size, to);
      return;
    }
    const float *cosine = cosine_.data() + position * half, *sine = sine_.data() + position * half;
    for (int64_t i = 0; i < half; ++i) {
      to[i] = x[i] * cosine[i] - x[half + i] * sine[i];
      to[half + i] = x[half + i] * cosine[i] + x[i] * sine[i];
    }
  }

  // qkv [count, (heads + 2 · key heads) · size] → [count, dim]; puts keys and values into the cache.
  at::Tensor attended(DecoderBlock& block, const at::Tensor& qkv) {
    const int64_t size = sizes_.head_size(), count = qkv.size(0), width = qkv.size(1), context = sizes_.context;
    const float* rows = qkv.const_data_ptr<float>();
    float *keys = block.keys.mutable_data_ptr<float>(), *values = block.values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t head = 0; head < key_heads_; ++head) {
        const int64_t at = (head * context + length_ + i) * size;
        turn(rows + i * width + key_at(head), length_ + i, keys + at);
        std::copy_n(rows + i * width + value_at(head), size, values + at);
      }
    at::Tensor out = at::zeros({count, sizes_.dim}, at::kFloat);
    query_.resize(size_t(size));
    weights_.resize(size_t(context));
    for (int64_t i = 0; i < count; ++i)
      for (int64_t head = 0; head < sizes_.heads; ++head) {
        turn(rows + i * width + query_at(head), length_ + i, query_.data());
        const int64_t cached = head / (sizes_.heads / key_heads_) * context * size;
        attend(keys + cached, values + cached, length_ + i + 1,
               out.mutable_data_ptr<float>() + i * sizes_.dim + head * size);
      }
    return out;
  }

  // Adds the mean of `known` values [known, size], weighted by softmax(keys · query / √size), to `out`.
  void attend(const float* keys, const float* values, int64_t known, float* out) {
    const int64_t size = sizes_.head_size();
    float* weights = weights_.data();
    at::Tensor products = at::from_blob(weights, {known});
    at::mv_out(products, at::from_blob(const_cast<float*>(keys), {known, size}), at::from_blob(query_.data(), {size}));
    const float scale = 1 / std::sqrt(float(size)), most = *std::max_element(weights, weights + known);
    float total = 0;
    for (int64_t t = 0; t < known; ++t) total += weights[t] = std::exp((weights[t] - most) * scale);
    for (int64_t t = 0; t < known; ++t) {
      const float weight = weights[t] / total;
      const float* value = values + t * size;
      for (int64_t k = 0; k < size; ++k) out[k] += weight * value[k];
    }
  }

  void make_angles() {
    const int64_t half = sizes_.head_size() / 2;
    for (int64_t position = 0; position < sizes_.context; ++position)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = double(position) * std::pow(sizes_.rotary_base, -double(i) / double(half));
        cosine_.push_back(float(std::cos(angle)));
        sine_.push_back(float(std::sin(angle)));
      }
  }

  const TransformerSizes sizes_;
  const int64_t key_heads_;
  int64_t length_ = 0;
  at::Tensor tokens_, positions_;
  std::vector<DecoderBlock> blocks_;
  DecoderNorm norm_;
  DecoderLinear output_;
  at::Tensor logits_;
  std::vector<float> cosine_, sine_;  // [context, head size / 2]
  std::vector<float> query_, weights_;
};

}  // namespace

std::unique_ptr<TokenDecoder> make_transformer_decoder(const TransformerSizes& sizes, const ParameterValues& values) {
  return std::make_unique<TransformerDecoder>(sizes, values);
}

}  // namespace convoy
