// Sum of squares and finiteness of a flat buffer, in one pass, as tensors on its device, without a read to the host.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace convoy {

struct SquareSum {
  at::Tensor sum;     // float64 [members]
  at::Tensor finite;  // bool [members]: true if every element is finite
};

// `values`: [members, …] contiguous, or any shape for one member; any float dtype. Empty: 0 and true. On the CPU,
// ranges of fixed size are summed in order. So the result is equal for any number of threads and any instruction set.
SquareSum square_sum(const at::Tensor& values, int64_t members = 1);

// Does the same for one member on the CPU, as plain numbers; makes no tensor for float or double.
struct HostSquareSum {
  double sum = 0;
  bool finite = true;
};
HostSquareSum host_square_sum(const at::Tensor& values);

}  // namespace convoy
