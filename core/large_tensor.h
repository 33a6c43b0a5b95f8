// Memory of tables as large as memory itself: zero until it is first written to, and in huge pages where the system has them.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

// How much of it will be touched: most of it, or rows here and there, whose neighbours are to take no memory.
enum class Touched { most, little };

// Zeros on the CPU whose pages take memory when they are first touched. Error(out_of_memory) with the size.
at::Tensor untouched_zeros(at::IntArrayRef shape, at::ScalarType dtype, Touched touched = Touched::most);

}  // namespace convoy
