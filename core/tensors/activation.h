// relu after a sum, fused into one step forward and one backward. In a light model, passes over memory and autograd
// nodes often cost more than arithmetic.
//
// Results equal those of the separate operations. Threads: the thread of the layer.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

// relu(shared + per_item) for a term that is shared by all entries of a row, such as a positive and its negatives:
// shared [.., B, H], per_item [.., B, N, H] → [.., B, N, H]. Gradients of `shared` are summed over N. Differentiable
// once.
at::Tensor relu_of_sum(const at::Tensor& shared, const at::Tensor& per_item);

}  // namespace convoy
