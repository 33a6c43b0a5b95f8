// Counter-based random numbers: a value is a function of its key and counter, so any rank can draw any element alone.
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Thread-safe: no state.
// Keys and single draws are in core/random_keys.h, which needs no LibTorch.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/random_keys.h"

namespace convoy {

// Fill `out` (any float dtype, contiguous, CPU) with draws number first, first+1, … of `key`: element i of the result is
// random_X(key, first + i), scaled in double and rounded once to the dtype. Shards therefore equal the slice of the
// whole, bit for bit, for any number of threads. Uniform draws lie in [low, high); rounding to a narrow dtype may reach
// `high`.
void fill_uniform(at::Tensor out, uint64_t key, uint64_t first, double low, double high);
void fill_normal(at::Tensor out, uint64_t key, uint64_t first, double mean, double deviation);

}  // namespace convoy
