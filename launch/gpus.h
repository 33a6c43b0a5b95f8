// GPUs of this host, counted through NVML without linking it: a machine without a driver has none, and that is no error.
#pragma once
#include <string>
#include <vector>

#include "core/topology.h"

namespace convoy {

// In the order in which a process sees them under CUDA_DEVICE_ORDER=PCI_BUS_ID, which rank processes are given.
std::vector<Gpu> find_gpus();

// What CUDA_VISIBLE_DEVICES leaves of them, in its order and numbered anew; unset (null): all. Like CUDA, it stops at the
// first entry that names no GPU.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus, const char* visible_devices);

}  // namespace convoy
