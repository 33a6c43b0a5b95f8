// DeviceGraph on CUDA, through LibTorch's at::cuda::CUDAGraph. It uses device-independent guards: CUDA's own guards
// would link its runtime, which a build does not need.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <algorithm>
#include <exception>

#include "backends/cuda/module/registry.h"

namespace convoy {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(at::Device device) : device_(device) {}

  void record(const std::function<void()>& work) override {
    const c10::DeviceGuard on(device_);
    // Recording needs a stream without other work, and its inputs must be complete.
    c10::cuda::getCurrentCUDAStream(device_.index()).unwrap().synchronize();
    const c10::StreamGuard guard(c10::cuda::getStreamFromPool(false, device_.index()).unwrap());
    // Other threads load batches into pinned memory at the same time; a global capture would forbid that.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      const std::exception_ptr why = std::current_exception();
      abandon();
      std::rethrow_exception(why);
    }
    graph_.capture_end();
  }

  void launch() override {
    const c10::DeviceGuard on(device_);
    graph_.replay();
  }

 private:
  // An invalid capture ends with an error that is less exact than the error that made it invalid.
  void abandon() {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
    }
    graph_.reset();
  }

  const at::Device device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace convoy

void convoy_make_graph(at::Device device, std::unique_ptr<convoy::DeviceGraph>& made) {
  made = std::make_unique<convoy::CudaGraph>(device);
}

// Sets the most memory that LibTorch's caching allocator takes on each visible GPU; an allocation beyond it throws
// c10::OutOfMemoryError, in this process only.
void convoy_limit_memory(int64_t bytes) {
  at::globalContext().lazyInitDevice(at::kCUDA);  // creates the allocator
  for (c10::DeviceIndex device = 0; device < static_cast<c10::DeviceIndex>(at::cuda::getNumGPUs()); ++device) {
    const auto total = double(at::cuda::getDeviceProperties(device)->totalGlobalMem);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(1.0, double(bytes) / total), device);
  }
}
