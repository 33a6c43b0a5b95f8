// A plugin for the test of `convoy verify`: a classifier with a mistake in its first block: it treats its shard of an
// activation as the whole. On one rank it is right, so only a comparison finds the mistake.
//
//   over: features   subtracts the mean over the hidden features; a rank of a tensor group has a part of them
//   over: rows       subtracts the mean over the rows; a rank of a data axis has a share of them
//   over: nothing    is right everywhere
//
// noise: true draws from LibTorch's own generator in training, as torch::nn::Dropout does.
// stays: seconds that its destructor takes after training, as that of a plugin whose thread does not end.
// And a loss, `mean_cross_entropy`, that returns a mean with weight 1, which is right for equal shares only.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/describe.h"
#include "core/base/json.h"
#include "core/model.h"
#include "core/plugin.h"

namespace convoy {
namespace {

class CentredBlock : public Block {
 public:
  CentredBlock(Layers& layers, int64_t in, int64_t hidden, int64_t out, std::string over)
      : dtype_(layers.dtype()), over_(std::move(over)) {
    LinearOptions options;
    options.cut = LinearOptions::Cut::column;
    up_ = register_module("up", layers.linear("up", in, hidden, options));
    options.cut = LinearOptions::Cut::row;
    down_ = register_module("down", layers.linear("down", hidden, out, options));
  }

  TensorList forward(const TensorList& inputs) override {
    at::Tensor value = up_->forward(inputs[0].to(dtype_));
    if (over_ == "features") value = value - value.mean(-1, /*keepdim=*/true);
    if (over_ == "rows" && value.size(-2) > 0) value = value - value.mean(-2, /*keepdim=*/true);
    return {down_->forward(value.tanh())};
  }

 private:
  at::ScalarType dtype_;
  std::string over_;
  Layer up_, down_;
};

class OutputBlock : public Block {
 public:
  OutputBlock(Layers& layers, int64_t in, int64_t out, bool noise) : noise_(noise) {
    linear_ = register_module("linear", layers.linear("linear", in, out));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor value = inputs[0].relu();
    return {linear_->forward(noise_ && is_training() ? value + 0.1 * at::rand_like(value) : value)};
  }

 private:
  bool noise_;
  Layer linear_;
};

class Wrong : public Model {
 public:
  Wrong(const Options& options, const Schema& schema)
      : over_(options.text("over")),
        noise_(options.boolean("noise")),
        stays_(options.real("stays")),
        in_(schema.at("features", "model wrong").shape.at(0)),
        classes_(schema.at("target", "model wrong").cardinality) {}

  ~Wrong() override {
    if (trained_) std::this_thread::sleep_for(std::chrono::duration<double>(stays_));
  }

  int64_t blocks() const override { return 2; }
  std::string block_name(int64_t index) const override { return index == 0 ? "centred" : "output"; }
  BlockPtr block(int64_t index, Layers& layers) const override {
    if (index == 0) return std::make_shared<CentredBlock>(layers, in_, hidden, width, over_);
    return std::make_shared<OutputBlock>(layers, width, classes_, noise_);
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    trained_ = true;
    return {outputs[0], batch.at("target"), at::Tensor()};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  static constexpr int64_t hidden = 16, width = 8;
  std::string over_;
  bool noise_;
  double stays_;
  mutable std::atomic<bool> trained_{false};
  int64_t in_, classes_;
};

class MeanCrossEntropy : public LossFunction {
 public:
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor mean = layers.cross_entropy(examples.prediction, examples.target).mean();
    return {mean, at::ones_like(mean).detach()};
  }
};

}  // namespace

CONVOY_PLUGIN(registry) {
  Entry entry;
  entry.name = "wrong";
  entry.help = "a classifier that takes a part of an activation for the whole";
  entry.options = {
      describe::choice("over", "what a mean is taken over", {"features", "rows", "nothing"}, "features"),
      describe::boolean("noise", "draw from LibTorch's generator in training", false),
      describe::real("stays", "seconds that the destructor takes after training", 0),
  };
  registry.catalogues.kinds["model"].push_back(entry);
  Entry loss;
  loss.name = "mean_cross_entropy";
  loss.help = "cross-entropy as a mean, which a loss must not be";
  registry.catalogues.kinds["loss"].push_back(loss);
  registry.losses.add("mean_cross_entropy", [](const Options&) { return std::make_shared<MeanCrossEntropy>(); });
  registry.models.add(
      "wrong", [](const Options& options, const Schema& schema) { return std::make_shared<Wrong>(options, schema); });
}

}  // namespace convoy
