// A limit on what tensors take of GPUs, whose code comes with LibTorch's CUDA half.
#include "backends/cuda/make_memory_limit.h"
#include "backends/cuda/registry.h"
#include "backends/cuda_half.h"

namespace convoy {

void limit_device_memory(int64_t bytes) {
  if (bytes > 0) reinterpret_cast<LimitMemory*>(cuda_half_symbol(limit_memory_symbol))(bytes);
}

}  // namespace convoy
