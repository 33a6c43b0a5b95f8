// Dropout whose mask is a function of (seed, step, layer's name, global row, element in the row), so that every layout of
// the same global batch, and a recomputation, drops the same elements.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "strategies/parts/parameter.h"

namespace convoy {

// Elements of a row that a tensor holds: all, or [begin, begin + n) of `whole` where a layer's output is cut.
struct DropoutCut {
  int64_t begin = 0;
  int64_t whole = 0;  // of the last dimension; 0: not cut
};

// The factors that dropout multiplies with, 0 or 1 ÷ (1 − p), in the shape, dtype and device of `like`. Rows are its
// leading dimensions: numel ÷ state.rows elements belong to each. p is rounded to 1/65536.
at::Tensor dropout_mask(const at::Tensor& like, double p, const std::string& name, const ForwardState& state,
                        const DropoutCut& cut = {});

}  // namespace convoy
