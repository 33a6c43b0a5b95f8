// Messages of bytes that hold tensors one after the other, each from a multiple of 8 on.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "strategies/parts/rows/row_numbers.h"

namespace convoy {

inline int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Part of a buffer of bytes as `elements` of another type.
inline at::Tensor bytes_as(const at::Tensor& bytes, int64_t begin, int64_t elements, at::ScalarType dtype) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, begin, elements * size).view(dtype);
}

// A buffer that has room for so many, and more for the next time.
inline at::Tensor& with_room(at::Tensor& buffer, int64_t bytes, at::Device device) {
  if (!buffer.defined() || buffer.numel() < bytes)
    buffer = at::empty({bytes + bytes / 2}, at::TensorOptions(at::kByte).device(device));
  return buffer;
}

}  // namespace convoy
