// A plugin with a recommender without a pair scorer: a score is the product of the embeddings of user and item. For
// tests/multi/use/recommend.py.
#include <ATen/core/Tensor.h>

#include "core/base/describe.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "core/plugin.h"

namespace convoy {
namespace {

class ProductBlock : public Block {
 public:
  ProductBlock(Layers& layers, int64_t users, int64_t items) {
    EmbeddingOptions options;
    options.weight = {Init::Kind::normal, 0, 0.1};
    user_ = register_module("user", layers.embedding("user", users, 6, options));
    item_ = register_module("item", layers.embedding("item", items, 6, options));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor user = user_->forward(inputs[0]), item = item_->forward(inputs[1]);
    return {(user.unsqueeze(-2) * item).sum(-1)};
  }

 private:
  Layer user_, item_;
};

class Product : public Model {
 public:
  explicit Product(const Schema& schema)
      : users_(schema.at("user", "model product").cardinality),
        items_(schema.at("item", "model product").cardinality) {}
  int64_t blocks() const override { return 1; }
  std::string block_name(int64_t) const override { return "product"; }
  BlockPtr block(int64_t, Layers& layers) const override {
    return std::make_shared<ProductBlock>(layers, users_, items_);
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at("user"), batch.at("item")}; }
  std::string default_loss() const override { return "bce"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers&) const override {
    return ranking_metrics(outputs[0], batch, {"hr"}, {10});
  }

 private:
  int64_t users_, items_;
};

}  // namespace

CONVOY_PLUGIN(registry) {
  registry.catalogues.kinds["model"].push_back({"product", "users and items by the product of their embeddings", {}});
  registry.models.add("product",
                      [](const Options&, const Schema& schema) { return std::make_shared<Product>(schema); });
}

}  // namespace convoy
