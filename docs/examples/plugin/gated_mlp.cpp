// A model: a recipe for blocks. Blocks get their layers from Layers, so every strategy can train the model.
#include <ATen/ATen.h>

#include "factories.h"

namespace {

using namespace convoy;

// [.., B, in] → sigmoid(gate x) ⊙ (value x), [.., B, out]
class GatedBlock : public Block {
 public:
  GatedBlock(Layers& layers, int64_t in, int64_t out, double dropout) : dtype_(layers.dtype()) {
    value_ = register_module("value", layers.linear("value", in, out));
    gate_ = register_module("gate", layers.linear("gate", in, out));
    dropout_ = register_module("dropout", layers.dropout("dropout", dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor x = inputs[0].to(dtype_);
    return {dropout_->forward(at::sigmoid(gate_->forward(x)) * value_->forward(x))};
  }

 private:
  at::ScalarType dtype_;
  Layer value_, gate_, dropout_;
};

class OutputBlock : public Block {
 public:
  OutputBlock(Layers& layers, int64_t in, int64_t out) : dtype_(layers.dtype()) {
    linear_ = register_module("linear", layers.linear("linear", in, out));
  }
  TensorList forward(const TensorList& inputs) override { return {linear_->forward(inputs[0].to(dtype_))}; }

 private:
  at::ScalarType dtype_;
  Layer linear_;
};

class GatedMlp : public Model {
 public:
  GatedMlp(const Options& options, const Schema& schema) : dropout_(options.real("dropout")) {
    const Field& features = schema.at("features", "model gated_mlp");
    const Field& target = schema.at("target", "model gated_mlp");
    feature_dims_ = int64_t(features.shape.size());
    int64_t width = 1;
    for (int64_t size : features.shape) width *= size;
    sizes_.push_back(width);
    for (int64_t size : options.integers("hidden")) sizes_.push_back(size);
    classes_ = target.cardinality;
    if (classes_ == 0 && target.shape.size() != 1)
      throw Error(Failure::config, "model gated_mlp predicts classes, or one list of numbers for each row");
    sizes_.push_back(classes_ > 0 ? classes_ : target.shape[0]);
  }

  int64_t blocks() const override { return int64_t(sizes_.size()) - 1; }
  std::string block_name(int64_t index) const override {
    return index + 1 < blocks() ? "gated." + std::to_string(index) : "output";
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    const int64_t in = sizes_[size_t(index)], out = sizes_[size_t(index) + 1];
    if (index + 1 < blocks()) return std::make_shared<GatedBlock>(layers, in, out, dropout_);
    return std::make_shared<OutputBlock>(layers, in, out);
  }
  TensorList inputs(const Batch& batch) const override {
    const at::Tensor& features = batch.at("features");
    // Counted from the end: a dimension of ensemble members may precede the rows.
    return {feature_dims_ > 1 ? features.flatten(-feature_dims_) : features};
  }
  std::string default_loss() const override { return classes_ > 0 ? "cross_entropy" : "mse"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    if (classes_ == 0) return {};
    return {accuracy(outputs[0], batch.at("target"), batch.optional("weight"), layers)};
  }

 private:
  double dropout_;
  int64_t feature_dims_ = 1;
  int64_t classes_ = 0;
  std::vector<int64_t> sizes_;
};

}  // namespace

ModelPtr make_gated_mlp(const Options& options, const Schema& schema) {
  return std::make_shared<GatedMlp>(options, schema);
}
