// Gradients in 16-bit numbers, as messages hold them. fp16 numbers travel with a power of two that brings the largest of
// a message to 2¹³, far below what fp16 ends at, so that small gradients are not lost; bf16 numbers as they are.
#pragma once
#include <ATen/core/Tensor.h>

#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {

// `numbers`: not none.
at::ScalarType narrow_dtype(Compression numbers);
// For fp16 numbers of which `most` is the largest, as an exponent; 0 of zeros and of what is not finite.
int narrow_power(double most);
// The same of a tensor that is not empty, on its device: a scalar of its dtype.
at::Tensor narrow_power(const at::Tensor& numbers);

}  // namespace convoy
