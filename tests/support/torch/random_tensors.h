// Tensors of random values that depend on a name and a seed only.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <string>

#include "core/tensors/random.h"

namespace convoy {

inline at::Tensor normal(at::IntArrayRef shape, const std::string& name, uint64_t seed = 1,
                         at::ScalarType dtype = at::kDouble) {
  at::Tensor out = at::empty(shape, dtype);
  fill_normal(out, random_key(seed, name), 0, 0, 1);
  return out;
}

// Integers from 0 to bound − 1.
inline at::Tensor integers(at::IntArrayRef shape, const std::string& name, int64_t bound, uint64_t seed) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_uniform(out, random_key(seed, name), 0, 0, static_cast<double>(bound));
  return out.floor().to(at::kLong);
}

}  // namespace convoy
