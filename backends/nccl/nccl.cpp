// Backend nccl; its code (backends/cuda/module/nccl.cpp) is loaded with LibTorch's CUDA half.
// Builds without NCCL have no_nccl.cpp instead.
#include "backends/cuda/module/registry.h"
#include "backends/registry.h"
#include "core/base/text.h"

namespace convoy {
namespace {

CommunicatorPtr make_nccl(const BackendRequest& request) {
  if (!request.device.is_cuda()) {
    throw Error(Failure::device_missing, "backend nccl needs a GPU per rank, and rank ", request.rank, " has ",
                request.device.str(), "; use backend gloo or mpi on the CPU");
  }
  static auto* const make = reinterpret_cast<MakeNccl*>(cuda_half_symbol(make_nccl_symbol));
  CommunicatorPtr made;
  make(request, made);
  return made;
}

}  // namespace

BackendFactory nccl_backend() { return make_nccl; }

}  // namespace convoy
