// What libconvoy_cuda.so offers, looked up by name when it has been loaded (backends/cuda_half.h).
#pragma once
#include "core/registry.h"

namespace convoy {

using MakeNccl = void(const BackendRequest& request, CommunicatorPtr& made);
inline constexpr char make_nccl_symbol[] = "convoy_make_nccl";

}  // namespace convoy

extern "C" convoy::MakeNccl convoy_make_nccl;
