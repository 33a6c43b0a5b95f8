// Trials of a model on this process alone, outside of training: its metrics, whether its loss is a sum over rows, and
// one step with the tensors of each layer.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/model_interface.h"

namespace convoy {

class GradientCollector;  // strategies/common/step/gradient_collector.h
class ModelPart;          // strategies/common/model/model_part.h

// Returns the context of a rank that is alone, on the CPU.
Context probe_context(const RunConfig& config);
// Gives parameters of the part memory for their gradients, as strategies do; returns the collector for one step. Call
// its `begin` before the backward.
GradientCollector probe_collector(const ModelPart& part);

// Evaluates the batch with a new model on the CPU and returns the names of its metrics, in order. Throws the model's
// exceptions.
std::vector<std::string> metric_names(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch);

// Checks that a loss is a sum over rows, so that shares, micro-batches and accumulated steps add up. Returns "" if loss
// and weight of `batch` are the sums of those of two unequal parts of it; otherwise both values and advice. Also
// returns "" if the parts cannot be evaluated, or for a batch of one row. Evaluates the whole model on this rank.
// `splits`: the model evaluates each part, because ranks divide the rows of an update. Otherwise only the loss gets
// parts of the outputs, because blocks may mix rows.
std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits);

struct TracedLayer {
  std::string name;  // canonical: "blocks.0.qkv"
  at::Tensor input, output;
};

// TracedStep: one step of a model on one device, with the input and the output of each layer that Layers builds.
//
// Dropout is off; batch norm uses the batch. Nothing is updated. For `convoy verify --against`.
// Threads: the calling thread. Failure: the model's exceptions with the name of the block.
struct TracedStep {
  std::vector<TracedLayer> layers;                            // in forward order, each at its first call
  double loss = 0;                                            // mean over rows, or over tokens
  std::vector<std::pair<std::string, at::Tensor>> gradients;  // mean gradients by parameter, in order of creation
};

// `set_values` receives the name and the value of every parameter and buffer, and overwrites the value.
TracedStep traced_step(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch,
                       const std::function<void(const std::string& name, const at::Tensor& value)>& set_values);

}  // namespace convoy
