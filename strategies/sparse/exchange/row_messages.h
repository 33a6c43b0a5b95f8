// Sections of row messages. Dense gradients come first, each padded to 8 bytes; they are summed in the order of ranks.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cstdint>
#include <vector>

#include "strategies/plans/options/sparse_embeddings.h"

namespace convoy {

// Byte messages contain tensors in sequence, each at a multiple of 8.

inline int64_t bytes_of(const at::Tensor& tensor) { return int64_t(tensor.nbytes()); }
inline char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

// Views part of a byte buffer as `elements` of another dtype.
inline at::Tensor bytes_as(const at::Tensor& bytes, int64_t begin, int64_t elements, at::ScalarType dtype) {
  const auto size = int64_t(c10::elementSize(dtype));
  return bytes.narrow(0, begin, elements * size).view(dtype);
}

// Returns a buffer of at least `bytes`; grows it by more than requested.
inline at::Tensor& with_room(at::Tensor& buffer, int64_t bytes, at::Device device) {
  if (!buffer.defined() || buffer.numel() < bytes)
    buffer = at::empty({bytes + bytes / 2}, at::TensorOptions(at::kByte).device(device));
  return buffer;
}

// Returns the bytes of all dense gradients in a message.
int64_t dense_bytes(const std::vector<at::Tensor>& dense);
// Writes to CPU memory; returns the end of the written bytes.
char* write_dense(char* to, const std::vector<at::Tensor>& dense);

// MessagePart: memory of a rank's message or section, from `begin` on.
struct MessagePart {
  at::Tensor bytes;
  int64_t begin = 0;
};
// Replaces each dense gradient by the sum over all ranks, added in their order.
void sum_dense(const std::vector<at::Tensor>& dense, const std::vector<MessagePart>& ranks);

}  // namespace convoy
