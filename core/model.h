// Block and LayerModule: the torch modules that models consist of. Code that defines a model or a layer includes this
// header. Other code includes core/model_interface.h, which compiles three seconds faster.
//
// Threads: a Block and its layers belong to one rank; the thread of that rank and its backward pass use them.
// Errors: forward throws Error(config) with the reason for unsuitable inputs; the caller adds the name of the block.
#pragma once
#include <ATen/ops/relu.h>
#include <torch/nn/module.h>

#include "core/model_interface.h"

namespace convoy {

// A layer that maps [.., B, …] to [.., B, …]. The block that creates it registers it.
struct LayerModule : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // relu(forward(input)). A layer that can do both in one step overrides it; the result stays the same.
  virtual at::Tensor forward_relu(const at::Tensor& input) { return at::relu(forward(input)); }
};

// Maps tensors to tensors. The unit of placement, pipeline stages, gathering and activation checkpointing.
class Block : public torch::nn::Module {
 public:
  virtual TensorList forward(const TensorList& inputs) = 0;
};

}  // namespace convoy
