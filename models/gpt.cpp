#include "models/registry.h"

#include <cmath>

#include "core/base/error.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "models/attention.h"
#include "models/catalogue/catalogue.h"
#include "models/common.h"

namespace convoy {
namespace {

constexpr const char* tokens_name = "tokens";  // name of the embedding; a tied output refers to it
constexpr double deviation = 0.02;             // standard deviation of initial values, as in GPT-2

struct GptSizes {
  int64_t vocabulary = 0;
  int64_t length = 0;  // longest sequence
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t mlp = 0;
  bool rotary = false;
  double rotary_base = 0;
  bool tied = false;
  double dropout = 0;
  double attention_dropout = 0;
  bool bias = true;
  double norm_eps = 0;
  EmbeddingOptions::Rows rows = EmbeddingOptions::Rows::dense;

  int64_t head_size() const { return dim / heads; }
};

using Cut = LinearOptions::Cut;

LinearOptions linear_options(Cut cut, bool bias, double standard_deviation) {
  LinearOptions options;
  options.weight = {Init::Kind::normal, 0, standard_deviation};
  options.bias = bias;
  options.bias_init = Init{Init::Kind::zeros, 0, 0};
  options.cut = cut;
  return options;
}

// tokens [.., B, T] int64 → [.., B, T, dim]
class GptEmbeddingBlock : public Block {
 public:
  GptEmbeddingBlock(Layers& layers, const GptSizes& sizes) : length_(sizes.length) {
    EmbeddingOptions options;
    options.weight = {Init::Kind::normal, 0, deviation};
    options.rows = sizes.rows;
    options.lookups = sizes.length;
    tokens_ = register_module("tokens", layers.embedding(tokens_name, sizes.vocabulary, sizes.dim, options));
    if (!sizes.rotary) positions_ = layers.parameter("positions", {sizes.length, sizes.dim}, options.weight);
    if (sizes.dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", sizes.dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    at::Tensor h = tokens_->forward(inputs[0]);
    if (positions_) {
      const int64_t length = h.size(-2);
      if (length > length_)
        throw Error(Failure::config, "the data set gave a sequence of ", length, " tokens, but its schema declares ",
                    length_);
      h = h + positions_->get().narrow(-2, 0, length).unsqueeze(-3);  // a member dimension stays before rows
    }
    return {dropout_ ? dropout_->forward(h) : h};
  }

 private:
  int64_t length_;
  Layer tokens_;
  std::unique_ptr<ParameterHandle> positions_;
  Layer dropout_;
};

// [.., B, T, dim] → the same shape: h + attention(norm(h)), then h + mlp(norm(h))
class TransformerBlock : public Block {
 public:
  TransformerBlock(Layers& layers, const GptSizes& sizes) : head_size_(sizes.head_size()) {
    const int64_t dim = sizes.dim;
    // Every block adds twice to the residual stream; this scale keeps the variance of the sum independent of depth.
    const double residual = deviation / std::sqrt(2.0 * double(sizes.layers));
    LinearOptions fused = linear_options(Cut::column, sizes.bias, deviation);
    fused.parts = 3;
    attention_norm_ = register_module("attention_norm", layers.layer_norm("attention_norm", dim, sizes.norm_eps));
    qkv_ = register_module("qkv", layers.linear("qkv", dim, 3 * dim, fused));
    projection_ = register_module(
        "projection", layers.linear("projection", dim, dim, linear_options(Cut::row, sizes.bias, residual)));
    mlp_norm_ = register_module("mlp_norm", layers.layer_norm("mlp_norm", dim, sizes.norm_eps));
    up_ =
        register_module("up", layers.linear("up", dim, sizes.mlp, linear_options(Cut::column, sizes.bias, deviation)));
    down_ =
        register_module("down", layers.linear("down", sizes.mlp, dim, linear_options(Cut::row, sizes.bias, residual)));
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
    const at::Tensor qkv = qkv_->forward(attention_norm_->forward(h));
    const at::Tensor attended = projection_->forward(self_attention(qkv, head_size_, rotary_.get(), weights_dropout_));
    h = h + (attention_dropout_ ? attention_dropout_->forward(attended) : attended);
    const at::Tensor hidden = apply_activation(up_->forward(mlp_norm_->forward(h)), "gelu");
    const at::Tensor out = down_->forward(hidden);
    return {h + (mlp_dropout_ ? mlp_dropout_->forward(out) : out)};
  }

 private:
  int64_t head_size_;
  Layer attention_norm_, qkv_, projection_, mlp_norm_, up_, down_;
  Layer weights_dropout_, attention_dropout_, mlp_dropout_;
  std::unique_ptr<Rotary> rotary_;
};

// [.., B, T, dim] → logits [.., B, T, vocabulary], sharded by vocabulary in a tensor group: loss and accuracy come from
// Layers.
class GptOutputBlock : public Block {
 public:
  GptOutputBlock(Layers& layers, const GptSizes& sizes, const std::string& embedding) {
    LinearOptions options = linear_options(Cut::column, false, deviation);
    if (sizes.tied) options.tied_to = embedding;
    norm_ = register_module("norm", layers.layer_norm("norm", sizes.dim, sizes.norm_eps));
    linear_ = register_module("linear", layers.linear("linear", sizes.dim, sizes.vocabulary, options));
  }
  TensorList forward(const TensorList& inputs) override { return {linear_->forward(norm_->forward(inputs[0]))}; }

 private:
  Layer norm_, linear_;
};

GptSizes gpt_sizes(const Options& options, const Schema& schema) {
  const Field& tokens = schema.at("tokens", "model gpt");
  const Field& target = schema.at("target", "model gpt");
  if (tokens.shape.size() != 1 || tokens.cardinality < 1 || target.shape != tokens.shape || target.cardinality < 1)
    throw Error(Failure::config,
                "model gpt wants rows of tokens with as many targets, both numbers of a vocabulary, and this data set "
                "has others; choose data: {name: text}");
  gpt_entry().check(options);
  GptSizes sizes;
  sizes.vocabulary = tokens.cardinality;
  sizes.length = tokens.shape[0];
  sizes.layers = options.integer("layers");
  sizes.heads = options.integer("heads");
  sizes.dim = options.integer("dim");
  sizes.mlp = options.has("mlp_dim") ? options.integer("mlp_dim") : options.integer("mlp_ratio") * sizes.dim;
  sizes.rotary = options.text("positions") == "rotary";
  sizes.rotary_base = options.real("rotary_base");
  sizes.tied = options.boolean("tied");
  sizes.dropout = options.real("dropout");
  sizes.attention_dropout = options.real("attention_dropout");
  sizes.bias = options.boolean("bias");
  sizes.norm_eps = options.real("norm_eps");
  sizes.rows = rows_of(options);
  if (target.cardinality != tokens.cardinality)
    throw Error(Failure::config, "model gpt: this data set has tokens of ", tokens.cardinality,
                " kinds and targets of ", target.cardinality, "; they have to be the same");
  return sizes;
}

class Gpt : public Model {
 public:
  Gpt(const Options& options, const Schema& schema) : sizes_(gpt_sizes(options, schema)) {}

  int64_t blocks() const override { return sizes_.layers + 2; }
  std::string block_name(int64_t index) const override {
    if (index == 0) return "embedding";
    return index == blocks() - 1 ? "output" : str("blocks.", index - 1);
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    if (index == 0) return std::make_shared<GptEmbeddingBlock>(layers, sizes_);
    if (index < blocks() - 1) return std::make_shared<TransformerBlock>(layers, sizes_);
    return std::make_shared<GptOutputBlock>(layers, sizes_, str(block_name(0), ".", tokens_name, ".weight"));
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

 private:
  GptSizes sizes_;
};

}  // namespace

ModelPtr make_gpt(const Options& options, const Schema& schema) { return std::make_shared<Gpt>(options, schema); }

}  // namespace convoy
