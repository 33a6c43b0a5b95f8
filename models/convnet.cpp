#include "models/registry.h"

#include "core/base/error.h"
#include "core/model.h"
#include "models/catalogue/catalogue.h"
#include "models/common.h"

namespace convoy {
namespace {

struct ConvSizes {
  std::vector<int64_t> channels;
  int64_t kernel = 3;
  bool batch_norm = true;
  double dropout = 0;
};

class ConvBlock : public Block {
 public:
  ConvBlock(Layers& layers, int64_t in, int64_t out, const ConvSizes& sizes) : dtype_(layers.dtype()) {
    Conv2dOptions options;
    options.padding = sizes.kernel / 2;
    options.bias = !sizes.batch_norm;  // batch norm would subtract a bias
    conv_ = register_module("conv", layers.conv2d("conv", in, out, sizes.kernel, options));
    if (sizes.batch_norm) norm_ = register_module("norm", layers.batch_norm("norm", out));
    if (sizes.dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", sizes.dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    at::Tensor h = conv_->forward(channels_last(inputs[0].to(dtype_)));
    if (norm_) h = norm_->forward(h);
    h = max_pooled(relu_of(h), 2, 2);
    return {dropout_ ? dropout_->forward(h) : h};
  }

 private:
  at::ScalarType dtype_;
  Layer conv_, norm_, dropout_;
};

class ConvHiddenBlock : public Block {
 public:
  ConvHiddenBlock(Layers& layers, int64_t in, int64_t out, double dropout) {
    linear_ = register_module("linear", layers.linear("linear", in, out));
    if (dropout > 0) dropout_ = register_module("dropout", layers.dropout("dropout", dropout));
  }
  TensorList forward(const TensorList& inputs) override {
    const at::Tensor h = linear_->forward_relu(inputs[0].flatten(-3));
    return {dropout_ ? dropout_->forward(h) : h};
  }

 private:
  Layer linear_, dropout_;
};

class ConvOutputBlock : public Block {
 public:
  ConvOutputBlock(Layers& layers, int64_t in, int64_t out, bool flattens) : flattens_(flattens) {
    linear_ = register_module("linear", layers.linear("linear", in, out));
  }
  TensorList forward(const TensorList& inputs) override {
    return {linear_->forward(flattens_ ? inputs[0].flatten(-3) : inputs[0])};
  }

 private:
  bool flattens_;
  Layer linear_;
};

class Convnet : public Classifier {
 public:
  Convnet(const Options& options, const Schema& schema) : Classifier(schema, "convnet") {
    sizes_.channels = options.integers("channels");
    sizes_.kernel = options.integer("kernel");
    sizes_.batch_norm = options.boolean("batch_norm");
    sizes_.dropout = options.real("dropout");
    hidden_ = options.integer("hidden");
    const auto convolutions = int64_t(sizes_.channels.size());
    convnet_entry().check(options);
    if (convolutions > 62 || height_ >> convolutions == 0 || width_ >> convolutions == 0)
      options.fail("channels", "has ", convolutions, " convolutions, and an image of ", height_, " × ", width_,
                   " cannot be halved as often; take fewer");
    flat_ = sizes_.channels.back() * (height_ >> convolutions) * (width_ >> convolutions);
  }

  int64_t blocks() const override { return convolutions() + (hidden_ > 0 ? 2 : 1); }
  std::string block_name(int64_t index) const override {
    if (index < convolutions()) return str("conv.", index);
    return index < blocks() - 1 ? "hidden" : "output";
  }
  BlockPtr block(int64_t index, Layers& layers) const override {
    if (index < convolutions()) {
      const int64_t in = index == 0 ? channels_ : sizes_.channels[size_t(index) - 1];
      return std::make_shared<ConvBlock>(layers, in, sizes_.channels[size_t(index)], sizes_);
    }
    if (index < blocks() - 1) return std::make_shared<ConvHiddenBlock>(layers, flat_, hidden_, sizes_.dropout);
    return std::make_shared<ConvOutputBlock>(layers, hidden_ > 0 ? hidden_ : flat_, classes_, hidden_ == 0);
  }

 private:
  int64_t convolutions() const { return int64_t(sizes_.channels.size()); }

  ConvSizes sizes_;
  int64_t hidden_ = 0;
  int64_t flat_ = 0;  // elements of an image's last convolution output
};

}  // namespace

ModelPtr make_convnet(const Options& options, const Schema& schema) {
  return std::make_shared<Convnet>(options, schema);
}

}  // namespace convoy
