// How much memory tensors on the CPU hold: what LibTorch's allocator gave out and has not got back, over the whole process.
//
// Call order: count_tensor_memory once, before the first tensor that matters. Threads: any. Cost: two atomic additions an
// allocation. On GPUs LibTorch's own caching allocator keeps such figures.
#pragma once
#include <cstdint>

namespace convoy {

void count_tensor_memory();

struct MemoryFigures {
  int64_t tensors = 0;       // bytes held now; 0 where nothing is counted
  int64_t tensors_peak = 0;  // the most since count_tensor_memory or reset_tensor_peak
  int64_t resident_peak =
      0;  // bytes of this process in memory at most, as the kernel counts (programs and libraries too)
};
MemoryFigures memory_figures();
void reset_tensor_peak();

}  // namespace convoy
