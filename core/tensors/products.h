// Products of matrices on the library that is fastest on this processor.
//
// LibTorch multiplies fp32 matrices on a CPU with MKL, which uses AVX2 on processors of AMD. oneDNN, a part of LibTorch
// too, uses AVX-512 where they have it. On EPYC of Zen 5 it takes about half of the time. So large products use oneDNN
// there. LibTorch's own functions compute all others: small ones, those of other dtypes, processors and devices, under
// autocast, of fake tensors, and those that need a graph. Forward-mode derivatives are not supported.
//
// Last bits differ between kinds of machines, as with any library. Threads: each function may be called from any
// thread, and uses its intra-op threads. Failure: as LibTorch's functions.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

namespace convoy {

// Returns `sizes` with another last size.
inline std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> shape = sizes.vec();
  shape.back() = last;
  return shape;
}

// a [n, k] · b [k, m] → [n, m], or for each i of a batch a [i, n, k] · b [i, k, m] → [i, n, m].
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

// Writes the product to `out`; with `add`, adds it. No graph. The matrices of a batch in `out` may have gaps between
// them.
void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);

// input [.., in], weight [out, in], bias [out] or undefined → [.., out].
at::Tensor linear_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

// input [i, n, in], weight [i, out, in], bias [i, out] or undefined → [i, n, out].
at::Tensor batched_linear_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace convoy
