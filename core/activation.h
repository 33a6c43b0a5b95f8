// relu behind a layer or behind a sum, in one step forward and one backward where that is possible: what a light model does
// often costs more in passes over memory and in autograd's nodes than in arithmetic.
//
// Both give what the separate operations give. Threads: as the layer's.
#pragma once
#include <ATen/core/Tensor.h>

#include "core/layers.h"

namespace convoy {

// What a layer is, too, where it can do both in one.
struct ReluLayer {
  virtual ~ReluLayer() = default;
  virtual at::Tensor forward_relu(const at::Tensor& input) = 0;
};

// relu(layer(input)).
at::Tensor relu_of(LayerModule& layer, const at::Tensor& input);

// relu(shared + own) for a part that all members of a row's group share, such as a positive and its negatives:
// shared [.., B, H], own [.., B, N, H] → [.., B, N, H]. Gradients of shared are summed over N. Differentiable once.
at::Tensor relu_of_sum(const at::Tensor& shared, const at::Tensor& own);

}  // namespace convoy
