// Fills the registry with what this folder has; the only place that names its classes.
#pragma once
#include <memory>

#include "core/device_graph.h"
#include "core/registry.h"

namespace convoy {
void register_backends(Registry& registry);

// launch.host_memory, before any backend is made: whether ranks of one host may share memory (gloo, mpi; host_segment.h). All
// ranks need not say the same: one that may not keeps all of its group from it.
void allow_host_memory(bool allowed);

// Loads LibTorch's CUDA half, which takes 0.2 s and 230 MB of a process: for ranks that have a GPU and for no others, so
// that those on a CPU, and 64 of them on a host, are there the sooner. Before anything asks LibTorch for a GPU, since it
// asks once whether it has that half. Again is free; any thread. Throws Error(device_missing).
void load_cuda_half();

// Of a rank's device, for Context::make_graph. Null where it records none: on the CPU, and in a build without CUDA's headers.
std::unique_ptr<DeviceGraph> make_device_graph(at::Device device);
}  // namespace convoy
