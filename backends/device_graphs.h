// Graphs of a rank's device (core/device_graph.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "core/device_graph.h"

namespace convoy {

// Null where the device records none: on the CPU, and in a build without CUDA's headers.
std::unique_ptr<DeviceGraph> make_device_graph(at::Device device);

}  // namespace convoy
