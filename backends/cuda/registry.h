// What a rank process asks of LibTorch's CUDA half before its ranks start.
#pragma once
#include <cstdint>

namespace convoy {

// The most that tensors of this process may take of each GPU that it is shown, from here on; what is beyond is
// c10::OutOfMemoryError where it is asked for. 0: no limit, and nothing is loaded. Throws Error(device_missing) where this
// build's LibTorch has no CUDA half, or one without our parts in it.
void limit_device_memory(int64_t bytes);

}  // namespace convoy
