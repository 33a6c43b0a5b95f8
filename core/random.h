// Counter-based random numbers: a value is a function of its key and counter, so any rank can draw any element alone.
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Thread-safe: no state.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace convoy {

// Mixes parts into a 64-bit key.
uint64_t random_key(uint64_t seed, std::string_view name, uint64_t a = 0, uint64_t b = 0);

// Four 32-bit words for counter (low, high).
std::array<uint32_t, 4> philox(uint64_t key, uint64_t low, uint64_t high);

// Uniform in [0, bound), unbiased enough for sampling (64-bit multiply-shift); draw number `index` of `key`.
uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound);
// Uniform in [0, 1) with 53 bits; standard normal by Box–Muller.
double random_uniform(uint64_t key, uint64_t index);
double random_normal(uint64_t key, uint64_t index);

// Fill `out` (any float dtype, contiguous, CPU) with draws number first, first+1, … of `key`: element i of the result is
// random_X(key, first + i) rounded to the dtype. Shards therefore equal the slice of the whole, bit for bit.
void fill_uniform(at::Tensor out, uint64_t key, uint64_t first, double low, double high);
void fill_normal(at::Tensor out, uint64_t key, uint64_t first, double mean, double deviation);

}  // namespace convoy
