// Initial values: a function of (seed, canonical name, global element index), so any rank can make any piece alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/layers.h"

namespace convoy {

// Of the global shape: how many inputs and outputs an element of it connects.
struct Fans {
  int64_t in = 1;
  int64_t out = 1;
};
// [out, in, …kernel] as torch counts; a vector's fan-in is its length.
Fans fans_of(at::IntArrayRef shape);

// A bias' values where the model says nothing else: uniform(±1 ÷ √fan_in), as torch.
Init bias_init(int64_t fan_in, const std::optional<Init>& asked);

// Writes elements first, first + 1, … (row-major in the global tensor) to `out`: contiguous, any float dtype and device.
void fill_initial(const at::Tensor& out, const Init& init, const Fans& fans, uint64_t seed, const std::string& name,
                  uint64_t first = 0);

}  // namespace convoy
