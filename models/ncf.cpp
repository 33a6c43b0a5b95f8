#include "models/registry.h"

#include <ATen/ops/cat.h>

#include <cmath>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "core/ranking/pair_scorer.h"
#include "models/catalogue/catalogue.h"
#include "models/common.h"
#include "models/pairs.h"

namespace convoy {
namespace {

struct NcfSizes {
  int64_t users = 0;
  int64_t items = 0;
  int64_t row_numbers = 0;   // context and user features: shared by a row's items
  int64_t item_numbers = 0;  // item features: one row of them per item
  int64_t gmf = 0;
  int64_t mlp = 0;
  std::vector<int64_t> hidden;
  double dropout = 0;
  EmbeddingOptions::Rows rows = EmbeddingOptions::Rows::dense;
  int64_t items_a_row = 1;
};

Init uniform(double bound) { return {Init::Kind::uniform, -bound, bound}; }

// Glorot and Bengio's bound. It is set explicitly because the first layer consists of two linear layers.
Init xavier(int64_t in, int64_t out) { return uniform(std::sqrt(6.0 / double(in + out))); }

LinearOptions linear_options(const Init& weight, bool bias = true) {
  LinearOptions options;
  options.weight = weight;
  options.bias = bias;
  options.bias_init = Init{Init::Kind::zeros, 0, 0};
  return options;
}

// Numbers that a row's items share, [.., B, C]; undefined if there are none.
at::Tensor ncf_row_numbers(const Batch& batch) {
  TensorList numbers;
  for (const char* name : {"context", "user_features"})
    if (const at::Tensor* some = batch.find(name)) numbers.push_back(*some);
  if (numbers.empty()) return {};
  return numbers.size() == 1 ? numbers[0] : at::cat(numbers, -1);
}

// user [.., B], item [.., B, N] → their embeddings [.., B, D] and [.., B, N, D]; passes numbers through.
class NcfEmbeddingBlock : public Block {
 public:
  NcfEmbeddingBlock(Layers& layers, const NcfSizes& sizes) : dtype_(layers.dtype()) {
    EmbeddingOptions options;
    options.weight = {Init::Kind::normal, 0, 0.01};
    options.rows = sizes.rows;
    user_ = register_module("user", layers.embedding("user", sizes.users, sizes.gmf + sizes.mlp, options));
    options.lookups = sizes.items_a_row;
    item_ = register_module("item", layers.embedding("item", sizes.items, sizes.gmf + sizes.mlp, options));
  }
  TensorList forward(const TensorList& inputs) override {
    TensorList outputs{user_->forward(inputs[0]), item_->forward(inputs[1])};
    for (size_t i = 2; i < inputs.size(); ++i) outputs.push_back(inputs[i].to(dtype_));
    return outputs;
  }
  at::Tensor user(const at::Tensor& ids) { return user_->forward(ids); }
  at::Tensor item(const at::Tensor& ids) { return item_->forward(ids); }

 private:
  at::ScalarType dtype_;
  Layer user_;
  Layer item_;
};

// Embeddings → [gmf [.., B, N, G], first hidden layer [.., B, N, H]]; a tensor of size 0 is left out.
class NcfFirstBlock : public Block {
 public:
  NcfFirstBlock(Layers& layers, const NcfSizes& sizes)
      : gmf_(sizes.gmf), mlp_(sizes.mlp), row_numbers_(sizes.row_numbers), item_numbers_(sizes.item_numbers) {
    if (mlp_ == 0) return;
    const int64_t out = sizes.hidden[0];
    const Init weight = xavier(2 * mlp_ + row_numbers_ + item_numbers_, out);
    row_ = register_module("row", layers.linear("row", mlp_ + row_numbers_, out, linear_options(weight)));
    item_ = register_module("item", layers.linear("item", mlp_ + item_numbers_, out, linear_options(weight, false)));
    if (sizes.dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", sizes.dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor of_row = row_numbers_ > 0 ? inputs[2] : at::Tensor();
    const at::Tensor of_item = item_numbers_ > 0 ? inputs.back() : at::Tensor();
    const Pairs pairs = pairs_of(inputs[0], inputs[1], of_row, of_item, gmf_);
    TensorList outputs;
    if (gmf_ > 0) outputs.push_back(pairs.product);
    if (mlp_ == 0) return outputs;
    const at::Tensor h = (row_->forward(pairs.row).unsqueeze(-2) + item_->forward(pairs.item)).relu_();
    outputs.push_back(dropout_ ? dropout_->forward(h) : h);
    return outputs;
  }
  // Factors [B, G] and part of the first hidden layer [B, H], of embeddings of users or of items. Undefined: none.
  std::pair<at::Tensor, at::Tensor> row_terms(const at::Tensor& users, const at::Tensor& numbers) {
    return parts(users, numbers, row_);
  }
  std::pair<at::Tensor, at::Tensor> item_terms(const at::Tensor& items, const at::Tensor& numbers) {
    return parts(items, numbers, item_);
  }

 private:
  std::pair<at::Tensor, at::Tensor> parts(const at::Tensor& embeddings, const at::Tensor& numbers, const Layer& layer) {
    std::pair<at::Tensor, at::Tensor> result;
    if (gmf_ > 0) result.first = embeddings.narrow(-1, 0, gmf_).contiguous();
    if (mlp_ == 0) return result;
    TensorList columns{embeddings.narrow(-1, gmf_, mlp_)};
    if (numbers.defined()) columns.push_back(numbers.to(embeddings.scalar_type()));
    result.second = layer->forward(at::cat(columns, -1)).contiguous();
    return result;
  }

  int64_t gmf_;
  int64_t mlp_;
  int64_t row_numbers_;
  int64_t item_numbers_;
  Layer row_;
  Layer item_;
  Layer dropout_;
};

// Applies a layer to the last tensor and passes the others through.
class NcfHiddenBlock : public Block {
 public:
  NcfHiddenBlock(Layers& layers, int64_t in, int64_t out, double dropout) {
    linear_ = register_module("linear", layers.linear("linear", in, out, linear_options(xavier(in, out))));
    if (dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    TensorList outputs = inputs;
    const at::Tensor h = linear_->forward_relu(inputs.back());
    outputs.back() = dropout_ ? dropout_->forward(h) : h;
    return outputs;
  }

 private:
  Layer linear_;
  Layer dropout_;
};

class NcfOutputBlock : public Block {
 public:
  NcfOutputBlock(Layers& layers, int64_t in) {
    linear_ = register_module("linear", layers.linear("linear", in, 1, linear_options(xavier(in, 1))));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor all = inputs.size() > 1 ? at::cat(inputs, -1) : inputs[0];
    return {linear_->forward(all).squeeze(-1)};
  }

 private:
  Layer linear_;
};

// Its scores equal the output of the blocks: the first hidden layer is a sum of terms of a row and of an item.
class NcfScorer : public PairScorer {
 public:
  // Null if a layer after the first is not one whole matrix, as with stacked members or sharded layers.
  static std::shared_ptr<NcfScorer> of(const std::vector<BlockPtr>& blocks, const NcfSizes& sizes) {
    if (blocks.size() < 3) return nullptr;
    const auto embedding = std::dynamic_pointer_cast<NcfEmbeddingBlock>(blocks[0]);
    const auto first = std::dynamic_pointer_cast<NcfFirstBlock>(blocks[1]);
    if (!embedding || !first) return nullptr;
    std::vector<PairMlp::Layer> layers;
    int64_t in = sizes.hidden.empty() ? 0 : sizes.hidden[0];
    for (size_t index = 2; index < blocks.size(); ++index) {
      const bool output = index + 1 == blocks.size();
      const int64_t out = output ? 1 : sizes.hidden[index - 1];
      if (output) in += sizes.gmf;
      const auto parameters = blocks[index]->named_parameters();
      const at::Tensor *weight = parameters.find("linear.weight"), *bias = parameters.find("linear.bias");
      if (weight == nullptr || bias == nullptr || weight->sizes() != at::IntArrayRef{out, in}) return nullptr;
      layers.push_back({weight->detach(), bias->detach()});
      in = out;
    }
    const at::ScalarType dtype = layers.back().weight.scalar_type();
    if (!layers.back().weight.is_cpu() || (dtype != at::kFloat && dtype != at::kDouble)) return nullptr;
    return std::make_shared<NcfScorer>(embedding, first, layers, sizes.gmf);
  }

  // `layers`: the output is the last one.
  NcfScorer(std::shared_ptr<NcfEmbeddingBlock> embedding, std::shared_ptr<NcfFirstBlock> first,
            std::vector<PairMlp::Layer> layers, int64_t gmf)
      : embedding_(std::move(embedding)), first_(std::move(first)), dtype_(layers.back().weight.scalar_type()) {
    const at::Tensor output = layers.back().weight.select(0, 0), bias = layers.back().bias;
    layers.pop_back();
    const int64_t mlp = output.numel() - gmf;
    if (gmf > 0) factor_weights_ = output.narrow(0, 0, gmf);
    mlp_.emplace(layers, mlp > 0 ? output.narrow(0, gmf, mlp) : at::Tensor(), bias, dtype_);
  }

  at::ScalarType dtype() const override { return dtype_; }
  TensorList row_terms(const Batch& rows) override {
    const auto [factors, sums] = first_->row_terms(embedding_->user(rows.at("user")), ncf_row_numbers(rows));
    return {factor_weights_.defined() ? factors * factor_weights_ : factors, sums};
  }
  TensorList item_terms(const at::Tensor& ids, const at::Tensor& features) override {
    const auto [factors, sums] = first_->item_terms(embedding_->item(ids), features);
    return {factors.defined() ? PairMlp::transposed_factors(factors) : factors, sums};
  }
  void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) override {
    mlp_->scores({rows[0], rows[1]}, {items[0], items[1]}, out);
  }

 private:
  std::shared_ptr<NcfEmbeddingBlock> embedding_;
  std::shared_ptr<NcfFirstBlock> first_;
  at::ScalarType dtype_;
  at::Tensor factor_weights_;  // weights of the output layer for the product of factors
  std::optional<PairMlp> mlp_;
};

class Ncf : public Model {
 public:
  Ncf(const Options& options, const Schema& schema)
      : top_k_(options.integers("top_k")),
        metrics_(options.has("metrics") ? options.texts("metrics") : std::vector<std::string>{"hr", "ndcg"}) {
    sizes_.users = schema.at("user", "model ncf").cardinality;
    sizes_.items = schema.at("item", "model ncf").cardinality;
    for (int64_t size : schema.at("item", "model ncf").shape) sizes_.items_a_row *= size;
    schema.at("target", "model ncf");
    const auto width = [&](const char* name) {
      const auto found = schema.fields.find(name);
      return found == schema.fields.end() ? 0 : found->second.shape.back();
    };
    sizes_.row_numbers = width("context") + width("user_features");
    sizes_.item_numbers = width("item_features");
    sizes_.gmf = options.integer("gmf_dim");
    sizes_.mlp = options.integer("mlp_dim");
    sizes_.hidden = options.integers("hidden");
    sizes_.dropout = options.real("dropout");
    sizes_.rows = rows_of(options);
    ncf_entry().check(options);
    if (sizes_.mlp == 0) sizes_.hidden.clear();
  }

  // Layers after the first hidden layer, which shares a block with the factorisation.
  int64_t blocks() const override { return 3 + std::max<int64_t>(0, int64_t(sizes_.hidden.size()) - 1); }
  std::string block_name(int64_t index) const override {
    if (index == 0) return "embedding";
    return index == blocks() - 1 ? "output" : str("hidden.", index - 1);
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    if (index == 0) return std::make_shared<NcfEmbeddingBlock>(layers, sizes_);
    if (index == 1) return std::make_shared<NcfFirstBlock>(layers, sizes_);
    if (index == blocks() - 1) {
      return std::make_shared<NcfOutputBlock>(layers, sizes_.gmf + (sizes_.hidden.empty() ? 0 : sizes_.hidden.back()));
    }
    return std::make_shared<NcfHiddenBlock>(layers, sizes_.hidden[size_t(index) - 2], sizes_.hidden[size_t(index) - 1],
                                            sizes_.dropout);
  }

  TensorList inputs(const Batch& batch) const override {
    TensorList list{batch.at("user"), batch.at("item")};
    if (const at::Tensor numbers = ncf_row_numbers(batch); numbers.defined()) list.push_back(numbers);
    if (sizes_.item_numbers > 0) list.push_back(batch.at("item_features"));
    return list;
  }
  std::string default_loss() const override { return "bce"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers&) const override {
    return ranking_metrics(outputs[0], batch, metrics_, top_k_);
  }
  std::shared_ptr<PairScorer> pair_scorer(const std::vector<BlockPtr>& blocks) const override {
    return NcfScorer::of(blocks, sizes_);
  }

 private:
  NcfSizes sizes_;
  std::vector<int64_t> top_k_;
  std::vector<std::string> metrics_;
};

}  // namespace

ModelPtr make_ncf(const Options& options, const Schema& schema) { return std::make_shared<Ncf>(options, schema); }

}  // namespace convoy
