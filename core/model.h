// Block and LayerModule: the torch modules that models are made of. Who writes a model or a layer includes this header;
// who only passes them on includes core/model_interface.h, which costs three seconds less to compile.
//
// Threads: a Block and its layers belong to one rank, and are used by that rank's thread and its backward.
// Errors: forward throws Error(config) with the reason for inputs that do not fit; the caller adds the block's name.
#pragma once
#include <torch/nn/module.h>

#include "core/model_interface.h"

namespace convoy {

// A layer that maps [.., B, …] to [.., B, …]. The block that asks for it registers it.
struct LayerModule : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

// Maps tensors to tensors. The unit of placement, of pipeline stages, of gathering and of activation checkpointing.
class Block : public torch::nn::Module {
 public:
  virtual TensorList forward(const TensorList& inputs) = 0;
};

}  // namespace convoy
