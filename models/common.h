// Common code of models: images, activation functions by name, and the option `rows`.
//
// Images are [.., B, C, H, W]; pooling folds members and rows into one dimension.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "core/base/json.h"
#include "core/data/dataset.h"
#include "core/layers.h"
#include "core/model_interface.h"

namespace convoy {

// Orders the elements of images [B, C, H, W] on the CPU by pixel: convolutions and what follows them keep this order,
// and are about a quarter quicker. Returns other images as they are.
at::Tensor channels_last(const at::Tensor& images);

// Maximum of each window; padded elements do not count. [.., C, H, W] → [.., C, H', W'].
at::Tensor max_pooled(const at::Tensor& images, int64_t kernel, int64_t stride, int64_t padding = 0);

// Base class of models whose blocks end in one logit per class. A model adds the blocks.
class Classifier : public Model {
 public:
  // Throws Error(config) unless the data set has images [C, H, W] with one class each; `model` is for messages.
  Classifier(const Schema& schema, const std::string& model);

  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override;

 protected:
  int64_t channels_ = 0, height_ = 0, width_ = 0, classes_ = 0;
};

// Applies relu | gelu | gelu_tanh | silu | tanh elementwise; the option's choices guarantee the name. gelu_tanh is
// GPT-2's approximation: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
at::Tensor apply_activation(const at::Tensor& input, const std::string& name);

// relu in the memory of `fresh`, a result that nothing else uses: one tensor less to write and to keep in the cache.
at::Tensor relu_of(at::Tensor fresh);

// Returns the form of gradients that the option `rows` requests from Layers.
EmbeddingOptions::Rows rows_of(const Options& model);

}  // namespace convoy
