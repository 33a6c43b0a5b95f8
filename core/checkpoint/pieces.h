// Copies between pieces of one tensor with any boxes or flat ranges. With it any layout reads any other.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/state.h"

namespace convoy {

// "" if the piece is valid: a box within its global shape, a flat range within the box, no overflow. Else the reason.
std::string piece_error(const Piece& piece);

// Shape of the tensor that holds a piece: the box, or [end - begin] of a flat range.
std::vector<int64_t> tensor_shape(const Piece& piece);

// Copies the elements that are in both pieces; returns their number. Both are contiguous CPU tensors of one dtype, with
// equal global shapes. Cost: one memcpy per run of elements that is contiguous in both.
int64_t copy_overlap(const Piece& to_piece, at::Tensor to, const Piece& from_piece, const at::Tensor& from);

}  // namespace convoy
