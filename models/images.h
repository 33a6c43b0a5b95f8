// What models of images share. Images are [.., B, C, H, W]; pooling folds members and rows into one dimension.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "core/data/dataset.h"
#include "core/model_interface.h"

namespace convoy {

// Largest value of each window; windows that leave the image see nothing there. [.., C, H, W] → [.., C, H', W'].
at::Tensor max_pooled(const at::Tensor& images, int64_t kernel, int64_t stride, int64_t padding = 0);

// A recipe for blocks that end in one logit per class: what is left to say is which blocks.
class Classifier : public Model {
 public:
  // Error(config) where the data set has no images [C, H, W] with one class each; `model` is for messages.
  Classifier(const Schema& schema, const std::string& model);

  TensorList inputs(const Batch& batch) const override { return {batch.at("features")}; }
  Examples examples(const TensorList& outputs, const Batch& batch) const override;
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override;

 protected:
  int64_t channels_ = 0, height_ = 0, width_ = 0, classes_ = 0;
};

}  // namespace convoy
