// Copies between pieces of one tensor with any boxes or flat ranges, so that any layout reads any other.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/state.h"

namespace convoy {

// Returns "" if the piece is valid: a box within its global shape, a flat range within the box, no overflow. Otherwise
// returns the reason.
std::string piece_error(const Piece& piece);

// Returns the shape of the tensor with a piece: the box, or [end - begin] for a flat range.
std::vector<int64_t> tensor_shape(const Piece& piece);

// Copies the elements that are in both pieces; returns their number. Both are contiguous CPU tensors of one dtype, with
// equal global shapes. Cost: one memcpy per run of elements that is contiguous in both.
int64_t copy_overlap(const Piece& to_piece, at::Tensor to, const Piece& from_piece, const at::Tensor& from);

}  // namespace convoy
