// Entry points of libconvoy_cuda.so: backend, graphs and memory limit on CUDA. cuda_half_symbol finds them by name
// after it has loaded the library.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/context.h"

namespace convoy {

// Types and names of the functions for make_device_graph, limit_device_memory and nccl_backend (backends/registry.h).

using MakeGraph = void(at::Device device, std::unique_ptr<DeviceGraph>& made);
inline constexpr char make_graph_symbol[] = "convoy_make_graph";

using LimitMemory = void(int64_t bytes);
inline constexpr char limit_memory_symbol[] = "convoy_limit_memory";

using MakeNccl = void(const BackendRequest& request, CommunicatorPtr& made);
inline constexpr char make_nccl_symbol[] = "convoy_make_nccl";

// Returns a function of libconvoy_cuda.so, which has convoy's code that calls CUDA. The library is linked against
// LibTorch's CUDA half in every build and loaded with it (load_cuda_half in backends/registry.h). Loads it first. Any
// thread. Throws Error(device_missing) with the loader's message, or if this build's LibTorch has no CUDA half.
void* cuda_half_symbol(const char* name);

// Limits the memory of this process's tensors on each visible GPU from now on. An allocation beyond it throws
// c10::OutOfMemoryError. 0: no limit, and nothing is loaded. Throws Error(device_missing) if this build's LibTorch has
// no CUDA half, or if the build lacks libconvoy_cuda.so.
void limit_device_memory(int64_t bytes);

// Checks that no two ranks share a GPU, because NCCL's message does not name this reason. `gpus`: by rank, an
// identifier of its GPU that is unique in the job ("node1 GPU-5f2a91c4-…"). Throws Error(config) with the ranks that
// share a GPU and the remedy.
void check_one_gpu_each(const std::vector<std::string>& gpus);

}  // namespace convoy

extern "C" convoy::MakeGraph convoy_make_graph;
extern "C" convoy::LimitMemory convoy_limit_memory;
extern "C" convoy::MakeNccl convoy_make_nccl;
