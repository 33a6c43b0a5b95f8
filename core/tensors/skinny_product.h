// Products of small layers on the CPU: linear layers of a few dozen features.
//
// They use the widest instructions of the machine. So last bits differ between kinds of machines, as with libraries. On
// one machine they depend only on the operands, not on the number of threads.
// Threads: any; a call uses the intra-op threads.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

namespace convoy {

// --- Skinny linear layers: a few dozen features ---
//
// In such a layer a library's product is the smaller part of the cost. Bias, relu, relu's gradient and the sums are
// separate operations with passes over the same memory. Here bias and relu are part of the product, and their gradients
// are one pass before the other gradients. fp32 and fp64.

// Loops over plain memory, row-major and without gaps, compiled for several vector widths. T is float or double.

// Returns the distance between rows of `weights` for the widest vectors: `width` rounded up, in elements.
template <class T>
constexpr int64_t padded_width(int64_t width) {
  constexpr int64_t lanes = 64 / int64_t(sizeof(T));
  return (width + lanes - 1) / lanes * lanes;
}

template <class T>
struct SkinnyLoops {
  // Computes out [n, width] = rows [n, depth] · weights [depth, width]. Rows of `weights` are padded_width(width)
  // apart; their padding is ignored. `first` [padded_width(width)]: initial values of the sums; null: 0. `relu` applies
  // to the result.
  void (*product)(const T* rows, const T* weights, const T* first, T* out, int64_t n, int64_t depth, int64_t width,
                  bool relu);
  // Computes out [height, width] = left [n, height]ᵀ · right [n, width]; with `add`, adds to `out`. `stride`: distance
  // between rows of `left`.
  void (*outer)(const T* left, const T* right, T* out, int64_t n, int64_t stride, int64_t height, int64_t width,
                bool add);
};
// Returns the loops that this machine can run, widest first. The argument selects the type.
const std::vector<SkinnyLoops<float>>& skinny_loops(float);
const std::vector<SkinnyLoops<double>>& skinny_loops(double);

// Each function also multiplies K members at once, whose tensors have a first dimension K: weights [K, out, in], biases
// [K, out], rows [K, n, ..]. There may be gaps between the members' weights, biases and gradients.

// True if the functions below support: an input [.., in] and a weight [out, in], or [K, n, in] and [K, out, in]; a
// gradient of that dtype (not an expanded one); the sum of `rows` [n, out] into `out` [out].
bool is_skinny(const at::Tensor& input, const at::Tensor& weight);
bool is_skinny_operand(const at::Tensor& gradient, at::ScalarType dtype);
bool is_skinny_sum(const at::Tensor& rows, const at::Tensor& out);

// input [n, in] (or flat [.., in]), bias [out] or undefined → [.., out]. `relu` applies to the result. No graph.
at::Tensor skinny_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, bool relu);

// Returns the gradient of relu: `gradient` where output > 0 (or NaN), else 0; [n, out].
at::Tensor skinny_relu_gradient(const at::Tensor& gradient, const at::Tensor& output);
// gradient [n, out] · weight [out, in] → [n, in].
at::Tensor skinny_input_gradient(const at::Tensor& gradient, const at::Tensor& weight);
// gradientᵀ · input → `out` [out, in], without gaps in a member; with `add`, adds to `out`.
void skinny_weight_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& out, bool add);
// Sums rows → `out` [out]; with `add`, adds to `out`.
void skinny_bias_gradient(const at::Tensor& gradient, const at::Tensor& out, bool add);

}  // namespace convoy
