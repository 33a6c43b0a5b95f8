#include "models/common.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "core/metrics/model_metrics.h"

namespace convoy {

at::Tensor channels_last(const at::Tensor& images) {
  return images.dim() == 4 && images.is_cpu() ? images.contiguous(at::MemoryFormat::ChannelsLast) : images;
}

at::Tensor max_pooled(const at::Tensor& images, int64_t kernel, int64_t stride, int64_t padding) {
  const at::Tensor pooled =
      at::max_pool2d(images.flatten(0, -4), {kernel, kernel}, {stride, stride}, {padding, padding});
  return pooled.unflatten(0, images.sizes().slice(0, size_t(images.dim() - 3)));
}

Classifier::Classifier(const Schema& schema, const std::string& model) {
  const Field& features = schema.at("features", "model " + model);
  const Field& target = schema.at("target", "model " + model);
  if (features.shape.size() != 3)
    throw Error(Failure::config, "model ", model,
                " takes images [channels, height, width], and this data set's features have shape ",
                at::IntArrayRef(features.shape), "; choose model mlp or another data set");
  if (target.cardinality < 1 || !target.shape.empty())
    throw Error(Failure::config, "model ", model,
                " predicts classes, and this data set's target is no class per image; choose model mlp");
  channels_ = features.shape[0];
  height_ = features.shape[1];
  width_ = features.shape[2];
  classes_ = target.cardinality;
}

std::vector<Metric> Classifier::metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const {
  return {accuracy(outputs[0], batch.at("target"), batch.optional("weight"), layers)};
}

at::Tensor apply_activation(const at::Tensor& input, const std::string& name) {
  if (name == "relu") return at::relu(input);
  if (name == "gelu") return at::gelu(input);
  if (name == "gelu_tanh") return at::gelu(input, "tanh");
  if (name == "silu") return at::silu(input);
  CONVOY_CHECK(name == "tanh", "activation ", name);
  return at::tanh(input);
}

// Not in place for a view, such as the output of members that run as groups of channels: autograd would copy its base.
at::Tensor relu_of(at::Tensor fresh) { return fresh.is_view() ? at::relu(fresh) : fresh.relu_(); }

EmbeddingOptions::Rows rows_of(const Options& model) {
  if (!model.has("rows")) return EmbeddingOptions::Rows::dense;
  if (model.is_auto("rows")) return EmbeddingOptions::Rows::automatic;
  // A model treats sharded embeddings as sparse embeddings; the strategy assigns the row owners.
  return model.at("rows") == "sharded" || model.at("rows") == true ? EmbeddingOptions::Rows::rows
                                                                   : EmbeddingOptions::Rows::dense;
}

}  // namespace convoy
