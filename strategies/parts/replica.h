// Replica: a whole model on this rank's device, with its forward, backward and evaluation.
//
// Call order: construct; then forward → backward for training, or evaluate. Threads: the rank's own (on CUDA, backward
// runs autograd's). Failure: Error(training) with block and step for what a model throws, its what() kept; a failure with
// a kind of its own keeps it; CommError passes through.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/model.h"
#include "strategies/parts/plain_layers.h"

namespace convoy {

class Replica {
 public:
  // Builds every block with its initial values.
  Replica(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // trained ones, in order of creation
  const std::vector<ParameterPtr>& frozen() const { return frozen_; }          // those that want no gradient
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  const std::shared_ptr<ForwardState>& state() const { return store_->state; }
  at::Device device() const { return store_->device; }
  at::ScalarType dtype() const { return store_->dtype; }

  // Loss of this share, in training; `step` keys random draws.
  Loss forward(const Batch& batch, int64_t step);
  // Gradients of loss.sum ÷ nominal.
  void backward(const Loss& loss, double nominal);
  // "loss" first, then the model's metrics; no gradient, no dropout.
  std::vector<Metric> evaluate(const Batch& batch);

 private:
  void build_block(int64_t index);
  void adopt_foreign(int64_t index);
  void set_training(bool training);
  Batch prepared(const Batch& batch) const;
  TensorList outputs_of(const Batch& batch);
  Loss loss_of(const TensorList& outputs, const Batch& batch);
  // Throws the exception under way again, with `where` in front.
  [[noreturn]] void rethrow(const std::string& where) const;

  ModelPtr model_;
  std::shared_ptr<const LossFunction> loss_;
  std::shared_ptr<LayerStore> store_;
  std::shared_ptr<PlainLayers> layers_;
  std::vector<std::shared_ptr<Layers>> scopes_;  // blocks may keep a reference to theirs
  std::vector<BlockPtr> blocks_;
  std::vector<ParameterPtr> parameters_;
  std::vector<ParameterPtr> frozen_;
  std::vector<NamedBuffer> buffers_;
  std::optional<at::ScalarType> autocast_;
  bool training_ = true;
};

// The metric of a loss: sum and weight as float64, without graph.
Metric loss_metric(const Loss& loss);

}  // namespace convoy
