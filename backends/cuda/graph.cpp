// DeviceGraph on CUDA, by LibTorch's at::cuda::CUDAGraph. By guards that know no device: those of CUDA would have us link its
// runtime, which a build does not need.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "backends/cuda/make_graph.h"

namespace convoy {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(at::Device device) : device_(device) {}

  void record(const std::function<void()>& work) override {
    const c10::DeviceGuard on(device_);
    // Recording takes a stream that has work of nobody else's, and what it reads must have been made.
    c10::cuda::getCurrentCUDAStream(device_.index()).unwrap().synchronize();
    const c10::StreamGuard guard(c10::cuda::getStreamFromPool(false, device_.index()).unwrap());
    // Other threads load batches into pinned memory meanwhile, which a global capture would forbid them.
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
  // An invalid capture ends with an error of its own, which says less than what made it invalid.
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
