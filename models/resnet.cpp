#include "models/registry.h"

#include <ATen/ops/constant_pad_nd.h>

#include "core/base/error.h"
#include "core/model.h"
#include "models/catalogue/catalogue.h"
#include "models/common.h"

namespace convoy {
namespace {

// Convolution and batch norm, with He's initial values for a following relu.
class Convolution : public torch::nn::Module {
 public:
  Convolution(Layers& layers, const std::string& name, int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    Conv2dOptions options;
    options.stride = stride;
    options.padding = kernel / 2;
    options.bias = false;  // batch norm would subtract a bias
    options.weight = {Init::Kind::kaiming_uniform, 0, 0};
    conv_ = register_module("conv", layers.conv2d(name + "_conv", in, out, kernel, options));
    norm_ = register_module("norm", layers.batch_norm(name + "_norm", out));
  }
  at::Tensor forward(const at::Tensor& x) { return norm_->forward(conv_->forward(x)); }

 private:
  Layer conv_, norm_;
};
using ConvolutionPtr = std::shared_ptr<Convolution>;

class StemBlock : public Block {
 public:
  StemBlock(Layers& layers, int64_t in, int64_t out, bool large) : dtype_(layers.dtype()), large_(large) {
    first_ =
        register_module("first", std::make_shared<Convolution>(layers, "first", in, out, large ? 7 : 3, large ? 2 : 1));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor h = relu_of(first_->forward(channels_last(inputs[0].to(dtype_))));
    return {large_ ? max_pooled(h, 3, 2, 1) : h};
  }

 private:
  at::ScalarType dtype_;
  bool large_;
  ConvolutionPtr first_;
};

// Sizes of one residual block.
struct Residual {
  int64_t in = 0;
  int64_t inner = 0;
  int64_t out = 0;
  int64_t stride = 1;
  bool bottleneck = false;  // 1 × 1, 3 × 3, 1 × 1; else 3 × 3 twice
  bool projected = false;   // shortcut if sizes change; else subsampled and padded

  bool changes() const { return in != out || stride != 1; }
};

class ResidualBlock : public Block {
 public:
  ResidualBlock(Layers& layers, const Residual& sizes) : sizes_(sizes) {
    const auto convolution = [&](const char* name, int64_t in, int64_t out, int64_t kernel, int64_t stride) {
      return register_module(name, std::make_shared<Convolution>(layers, name, in, out, kernel, stride));
    };
    if (sizes.bottleneck) {
      chain_.push_back(convolution("first", sizes.in, sizes.inner, 1, 1));
      chain_.push_back(convolution("second", sizes.inner, sizes.inner, 3, sizes.stride));
      chain_.push_back(convolution("third", sizes.inner, sizes.out, 1, 1));
    } else {
      chain_.push_back(convolution("first", sizes.in, sizes.inner, 3, sizes.stride));
      chain_.push_back(convolution("second", sizes.inner, sizes.out, 3, 1));
    }
    if (sizes.changes() && sizes.projected) projection_ = convolution("shortcut", sizes.in, sizes.out, 1, sizes.stride);
  }
  TensorList forward(const TensorList& inputs) override {
    at::Tensor h = inputs[0];
    for (size_t i = 0; i + 1 < chain_.size(); ++i) h = relu_of(chain_[i]->forward(h));
    return {relu_of(chain_.back()->forward(h) + shortcut(inputs[0]))};
  }

 private:
  at::Tensor shortcut(const at::Tensor& x) {
    if (projection_) return projection_->forward(x);
    if (!sizes_.changes()) return x;
    const int64_t more = sizes_.out - sizes_.in;
    const at::Tensor smaller = x.slice(-2, 0, x.size(-2), sizes_.stride).slice(-1, 0, x.size(-1), sizes_.stride);
    return at::constant_pad_nd(smaller, {0, 0, 0, 0, more / 2, more - more / 2});
  }

  Residual sizes_;
  std::vector<ConvolutionPtr> chain_;
  ConvolutionPtr projection_;
};

class ResNetOutputBlock : public Block {
 public:
  ResNetOutputBlock(Layers& layers, int64_t in, int64_t classes) {
    linear_ = register_module("linear", layers.linear("linear", in, classes));
  }
  TensorList forward(const TensorList& inputs) override {
    return {linear_->forward(inputs[0].mean(at::IntArrayRef{-2, -1}))};
  }

 private:
  Layer linear_;
};

bool is_large(const Options& options) { return options.text("shape") == "imagenet"; }

int64_t depth_of(const Options& options) {
  return options.has("depth") ? options.integer("depth") : is_large(options) ? 18 : 20;
}

class Resnet : public Classifier {
 public:
  Resnet(const Options& options, const Schema& schema) : Classifier(schema, "resnet"), large_(is_large(options)) {
    resnet_entry().check(options);
    const bool bottleneck = large_ && depth_of(options) == 50;
    int64_t in = in_first_stage(large_), stage = 0;
    for (const int64_t blocks : resnet_stages(options)) {
      const int64_t inner = in_first_stage(large_) << stage;
      add_stage(in, inner, inner * (bottleneck ? 4 : 1), blocks, stage);
      ++stage;
    }
  }

  int64_t blocks() const override { return int64_t(residuals_.size()) + 2; }
  std::string block_name(int64_t index) const override {
    if (index == 0) return "stem";
    return index == blocks() - 1 ? "output" : str("blocks.", index - 1);
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    if (index == 0) return std::make_shared<StemBlock>(layers, channels_, residuals_.front().in, large_);
    if (index == blocks() - 1) return std::make_shared<ResNetOutputBlock>(layers, residuals_.back().out, classes_);
    return std::make_shared<ResidualBlock>(layers, residuals_[size_t(index) - 1]);
  }

 private:
  static int64_t in_first_stage(bool large) { return large ? 64 : 16; }
  // The first block of each stage except the first halves the image.
  void add_stage(int64_t& in, int64_t inner, int64_t out, int64_t blocks, int64_t stage) {
    for (int64_t i = 0; i < blocks; ++i) {
      residuals_.push_back({in, inner, out, stage > 0 && i == 0 ? 2 : 1, inner != out, large_});
      in = out;
    }
  }

  bool large_;
  std::vector<Residual> residuals_;
};

}  // namespace

std::vector<int64_t> resnet_stages(const Options& options) {
  const int64_t depth = depth_of(options);
  if (!is_large(options)) return std::vector<int64_t>(3, (depth - 2) / 6);
  return depth == 18 ? std::vector<int64_t>{2, 2, 2, 2} : std::vector<int64_t>{3, 4, 6, 3};
}

ModelPtr make_resnet(const Options& options, const Schema& schema) { return std::make_shared<Resnet>(options, schema); }

}  // namespace convoy
