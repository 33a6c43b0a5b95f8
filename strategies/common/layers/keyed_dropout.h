// Dropout with a mask that is a function of (seed, step, layer name, global row, element in the row). Every layout of
// the same global batch, and a checkpointed forward, drops the same elements.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "strategies/common/layers/parameter.h"

namespace convoy {

// Elements of a row in a tensor: all, or [begin, begin + n) of `whole` if a layer's output is sharded.
struct DropoutCut {
  int64_t begin = 0;
  int64_t whole = 0;  // size of the last dimension; 0: not sharded
};

// Returns the factors of dropout, 0 or 1 ÷ (1 − p), in the shape, dtype and device of `like`. Rows are its leading
// dimensions: each has numel ÷ state.rows elements. p is rounded to 1/65536.
at::Tensor dropout_mask(const at::Tensor& like, double p, const std::string& name, const ForwardState& state,
                        const DropoutCut& cut = {});

}  // namespace convoy
