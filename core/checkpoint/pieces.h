// Copies between pieces of one tensor, whatever boxes or flat ranges they are: what lets any layout read any other.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/state.h"

namespace convoy {

// "" when the piece is possible: a box within its global shape, a flat range within the box, no overflow.
std::string piece_fault(const Piece& piece);

// Shape of the tensor that holds a piece: the box, or [end - begin] of a flat range.
std::vector<int64_t> tensor_shape(const Piece& piece);

// Copies the elements that both hold from one to the other; how many they were. Both are contiguous CPU tensors of one
// dtype, with equal global shapes. Cost: one memcpy per run of elements that lie together in both.
int64_t copy_overlap(const Piece& to_piece, at::Tensor to, const Piece& from_piece, const at::Tensor& from);

}  // namespace convoy
