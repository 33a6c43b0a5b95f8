// What a process may take of each of its GPUs, where a farm's pipeline has a limit (`gpu_memory`): LibTorch's allocator is
// held to it, so that a tensor too many is out of memory in that pipeline and nowhere else. Without LibTorch.
#pragma once
#include <cstdint>

#include "core/plan.h"
#include "launch/environment.h"

namespace convoy {

// From the farm to the pipeline's `convoy`: bytes on each of its GPUs.
inline constexpr char gpu_memory_variable[] = "CONVOY_GPU_MEMORY";

// CUDA's contexts, kernels and what NCCL takes lie outside the allocator: as much may be on a GPU beside its limit.
inline constexpr int64_t outside_allocator = int64_t{1} << 30;

// Of the environment; 0: no limit. Throws Error(command_line) for what is no number of bytes above 0.
int64_t gpu_memory_limit(const Variables& variables);

// Of `limit` on each GPU, this process' part: processes of the job that share a GPU divide it alike. 0: no limit.
int64_t limit_of_process(const Job& job, int process, int64_t limit);

}  // namespace convoy
