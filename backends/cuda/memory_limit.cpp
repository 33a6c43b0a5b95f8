// The most that LibTorch's caching allocator takes of each GPU that this process is shown; one byte more is
// c10::OutOfMemoryError, in this process alone.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

#include "backends/cuda/make_memory_limit.h"

void convoy_limit_memory(int64_t bytes) {
  at::globalContext().lazyInitDevice(at::kCUDA);  // else there is no allocator yet
  for (c10::DeviceIndex device = 0; device < static_cast<c10::DeviceIndex>(at::cuda::getNumGPUs()); ++device) {
    const auto total = static_cast<double>(at::cuda::getDeviceProperties(device)->totalGlobalMem);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / total), device);
  }
}
