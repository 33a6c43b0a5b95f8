// Copying chosen rows of an array, converted on the way.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace convoy {

// out[r] = scale · source[rows_wanted[r]], elementwise over all dimensions but the first. CPU, contiguous. source: any
// integer or float dtype; out: float, double, int64 or uint8.
void gather_rows(const at::Tensor& source, const int64_t* rows_wanted, int64_t rows, at::Tensor& out, double scale = 1);

}  // namespace convoy
