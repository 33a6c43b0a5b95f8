// TracedStep: one step of a model on one device, with the input and the output of each layer that Layers builds.
//
// Dropout is off; batch norm uses the batch. Nothing is updated. For `convoy verify --against`.
// Threads: the calling thread. Failure: the model's exceptions with the name of the block.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/model_interface.h"

namespace convoy {

struct TracedLayer {
  std::string name;  // canonical: "blocks.0.qkv"
  at::Tensor input, output;
};

struct TracedStep {
  std::vector<TracedLayer> layers;                            // in forward order, each at its first call
  double loss = 0;                                            // mean over rows, or over tokens
  std::vector<std::pair<std::string, at::Tensor>> gradients;  // mean gradients by parameter, in order of creation
};

// `set_values` receives the name and the value of every parameter and buffer, and overwrites the value.
TracedStep traced_step(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch,
                       const std::function<void(const std::string& name, const at::Tensor& value)>& set_values);

}  // namespace convoy
