// Sum of squares and finiteness of a flat buffer, in one pass, as tensors on its device: nothing is read to the host.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace convoy {

struct SquareSum {
  at::Tensor sum;     // float64 [members]
  at::Tensor finite;  // bool [members]: every element is
};

// `values`: [members, …] contiguous, or any shape for one member; any float dtype. Empty: 0 and true.
// On the CPU parts of fixed size are summed in order, so the result depends neither on threads nor on instruction set.
SquareSum square_sum(const at::Tensor& values, int64_t members = 1);

// The same of one member whose values lie on the CPU, as plain numbers: no tensor is made where they are float or double.
struct HostSquareSum {
  double sum = 0;
  bool finite = true;
};
HostSquareSum host_square_sum(const at::Tensor& values);

}  // namespace convoy
