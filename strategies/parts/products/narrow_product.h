// Linear layers that are narrow: a few dozen features. Of such a layer a library's product is the smaller part: bias, relu, its
// gradient and the sums are operations of their own, each with a pass over the same memory and its costs beside that. Here
// bias and relu are part of the product, and their gradients one pass in front of the others'.
//
// On the CPU, fp32 and fp64, by the widest instructions that the machine has, so last bits differ between kinds of machines, as
// those of a library's products do; on one machine they depend on nothing but the operands, not on the number of threads.
// Threads: any; within a call the intra-op ones.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

// Whether the functions below serve: for an input [.., in] and a weight [out, in], for a gradient of that dtype (not one that
// stands for several), and for the sum of `rows` [n, out] that goes to `out` [out].
bool narrow(const at::Tensor& input, const at::Tensor& weight);
bool narrow_operand(const at::Tensor& gradient, at::ScalarType dtype);
bool narrow_sum(const at::Tensor& rows, const at::Tensor& out);

// input [n, in] (or flat [.., in]), bias [out] or undefined → [.., out]; `relu` of it. No graph.
at::Tensor narrow_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, bool relu);

// `gradient` where output > 0 (or NaN), [n, out]: what relu hands back.
at::Tensor narrow_relu_gradient(const at::Tensor& gradient, const at::Tensor& output);
// gradient [n, out] · weight [out, in] → [n, in].
at::Tensor narrow_input_gradient(const at::Tensor& gradient, const at::Tensor& weight);
// gradientᵀ · input → `out` [out, in], contiguous; `add`: to what is there.
void narrow_weight_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& out, bool add);
// Sum over rows → `out` [out]; `add`: to what is there.
void narrow_bias_gradient(const at::Tensor& gradient, const at::Tensor& out, bool add);

}  // namespace convoy
