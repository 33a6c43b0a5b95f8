// Graphs of a rank's device (core/device_graph.h), whose code comes with LibTorch's CUDA half.
#include "backends/cuda/make_graph.h"
#include "backends/cuda_half.h"
#include "backends/registry.h"
#include "core/error.h"

namespace convoy {

std::unique_ptr<DeviceGraph> make_device_graph(at::Device device) {
  std::unique_ptr<DeviceGraph> made;
  try {
    if (device.is_cuda()) reinterpret_cast<MakeGraph*>(cuda_half_symbol(make_graph_symbol))(device, made);
  } catch (const Error&) {
    // A build without CUDA's headers: steps are launched one kernel at a time.
  }
  return made;
}

}  // namespace convoy
