#include "models/registry.h"

#include "core/base/error.h"
#include "core/metrics/model_metrics.h"
#include "core/model.h"
#include "models/common.h"

namespace convoy {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t all = 1;
  for (int64_t size : shape) all *= size;
  return all;
}

// Layers form pairs: the first of a pair is column-parallel in a tensor group, the second row-parallel. With an odd
// number of layers the last one is whole.
LinearOptions pair_member(int64_t index, int64_t layers) {
  LinearOptions options;
  if (index % 2 == 1)
    options.cut = LinearOptions::Cut::row;
  else if (index + 1 < layers)
    options.cut = LinearOptions::Cut::column;
  return options;
}

class MlpHiddenBlock : public Block {
 public:
  MlpHiddenBlock(Layers& layers, int64_t in, int64_t out, const LinearOptions& options, const std::string& activation,
                 double dropout)
      : activation_(activation), dtype_(layers.dtype()) {
    linear_ = register_module("linear", layers.linear("linear", in, out, options));
    if (dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor input = inputs[0].to(dtype_);
    const at::Tensor h =
        activation_ == "relu" ? linear_->forward_relu(input) : apply_activation(linear_->forward(input), activation_);
    return {dropout_ ? dropout_->forward(h) : h};
  }

 private:
  std::string activation_;
  at::ScalarType dtype_;
  Layer linear_;
  Layer dropout_;
};

class MlpOutputBlock : public Block {
 public:
  MlpOutputBlock(Layers& layers, int64_t in, int64_t out, const LinearOptions& options, std::vector<int64_t> shape,
                 double mean, double deviation)
      : shape_(std::move(shape)), dtype_(layers.dtype()), mean_(mean), deviation_(deviation) {
    linear_ = register_module("linear", layers.linear("linear", in, out, options));
  }
  TensorList forward(const TensorList& inputs) override {
    at::Tensor out = linear_->forward(inputs[0].to(dtype_));
    if (mean_ != 0 || deviation_ != 1) {
      // 16 bits cannot hold a deviation that is small next to the mean.
      if (dtype_ != at::kDouble) out = out.to(at::kFloat);
      out = out * deviation_ + mean_;
    }
    if (shape_.empty()) return {out.squeeze(-1)};
    if (shape_.size() > 1) return {out.unflatten(-1, shape_)};
    return {out};
  }

 private:
  std::vector<int64_t> shape_;  // shape of one row's output
  at::ScalarType dtype_;
  double mean_, deviation_;
  Layer linear_;
};

class Mlp : public Model {
 public:
  Mlp(const Options& options, const Schema& schema)
      : hidden_(options.integers("hidden")),
        activation_(options.text("activation")),
        dropout_(options.real("dropout")),
        // Checkpoints of earlier versions do not have these two.
        mean_(options.json().contains("output_mean") ? options.real("output_mean") : 0),
        deviation_(options.json().contains("output_deviation") ? options.real("output_deviation") : 1) {
    const Field& features = schema.at("features", "model mlp");
    const Field& target = schema.at("target", "model mlp");
    feature_dims_ = int64_t(features.shape.size());
    classes_ = target.cardinality;
    shape_ = classes_ > 0 ? std::vector<int64_t>{classes_} : target.shape;
    if (classes_ > 0 && !target.shape.empty())
      throw Error(Failure::config, "model mlp predicts one class for each row, and this data set has several");
    if (classes_ > 0 && (mean_ != 0 || deviation_ != 1))
      throw Error(Failure::config,
                  "model.output_mean and model.output_deviation are for predicted numbers, and the target of this data "
                  "set is a class; leave them out");
    sizes_ = {product(features.shape)};
    sizes_.insert(sizes_.end(), hidden_.begin(), hidden_.end());
    sizes_.push_back(product(shape_));
  }

  int64_t blocks() const override { return int64_t(hidden_.size()) + 1; }
  std::string block_name(int64_t index) const override {
    return index < int64_t(hidden_.size()) ? str("hidden.", index) : "output";
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    const int64_t in = sizes_[size_t(index)];
    const int64_t out = sizes_[size_t(index) + 1];
    const LinearOptions options = pair_member(index, blocks());
    if (index < int64_t(hidden_.size()))
      return std::make_shared<MlpHiddenBlock>(layers, in, out, options, activation_, dropout_);
    return std::make_shared<MlpOutputBlock>(layers, in, out, options, shape_, mean_, deviation_);
  }

  TensorList inputs(const Batch& batch) const override {
    const at::Tensor& features = batch.at("features");
    if (feature_dims_ == 0) return {features.unsqueeze(-1)};
    return {feature_dims_ > 1 ? features.flatten(-feature_dims_) : features};
  }
  std::string default_loss() const override { return classes_ > 0 ? "cross_entropy" : "mse"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    if (classes_ == 0) return {};
    return {accuracy(outputs[0], batch.at("target"), batch.optional("weight"), layers)};
  }

 private:
  std::vector<int64_t> hidden_;
  std::string activation_;
  double dropout_;
  double mean_, deviation_;  // mean and deviation of the target
  int64_t feature_dims_ = 1;
  int64_t classes_ = 0;         // 0: predicts numbers
  std::vector<int64_t> shape_;  // shape of one row's output
  std::vector<int64_t> sizes_;  // in, hidden …, out
};

}  // namespace

ModelPtr make_mlp(const Options& options, const Schema& schema) { return std::make_shared<Mlp>(options, schema); }

}  // namespace convoy
