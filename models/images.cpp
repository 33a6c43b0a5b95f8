#include "models/images.h"

#include <ATen/ops/max_pool2d.h>

#include "core/error.h"
#include "core/metrics/accuracy.h"
#include "core/text.h"

namespace convoy {

at::Tensor max_pooled(const at::Tensor& images, int64_t kernel, int64_t stride, int64_t padding) {
  const at::Tensor pooled =
      at::max_pool2d(images.flatten(0, -4), {kernel, kernel}, {stride, stride}, {padding, padding});
  return pooled.unflatten(0, images.sizes().slice(0, static_cast<size_t>(images.dim() - 3)));
}

Classifier::Classifier(const Schema& schema, const std::string& model) {
  const Field& features = schema.at("features", "model " + model);
  const Field& target = schema.at("target", "model " + model);
  if (features.shape.size() != 3)
    throw Error(Failure::config,
                str("model ", model, " wants images of channels × height × width, and this data set's features have ",
                    features.shape.size(), " dimensions; choose model mlp or another data set"));
  if (target.cardinality < 1 || !target.shape.empty())
    throw Error(
        Failure::config,
        str("model ", model, " tells classes, and this data set's target is no class per image; choose model mlp"));
  channels_ = features.shape[0];
  height_ = features.shape[1];
  width_ = features.shape[2];
  classes_ = target.cardinality;
}

Examples Classifier::examples(const TensorList& outputs, const Batch& batch) const {
  const at::Tensor* weight = batch.find("weight");
  return {outputs[0], batch.at("target"), weight == nullptr ? at::Tensor() : *weight};
}

std::vector<Metric> Classifier::metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const {
  const at::Tensor* weight = batch.find("weight");
  return {accuracy(outputs[0], batch.at("target"), weight == nullptr ? at::Tensor() : *weight, layers)};
}

}  // namespace convoy
