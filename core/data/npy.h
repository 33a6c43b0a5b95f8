// NumPy's .npy files, memory-mapped.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace convoy {
// A read-only view of the mapping, which it keeps alive. Little-endian numbers in C order; else Error(corrupt_data) with
// what to type in Python. Never runs anything: arrays of objects are refused.
at::Tensor read_npy(const std::string& path);
}  // namespace convoy
