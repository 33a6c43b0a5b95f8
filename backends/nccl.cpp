// nccl, whose code (backends/cuda/nccl.cpp) comes with LibTorch's CUDA half.
#include "backends/cuda/make_nccl.h"
#include "backends/cuda_half.h"
#include "backends/makers.h"
#include "core/text.h"

namespace convoy {
namespace {

CommunicatorPtr make_nccl(const BackendRequest& request) {
  if (!request.device.is_cuda()) {
    throw Error(Failure::device_missing, str("backend nccl needs a GPU per rank, and rank ", request.rank, " has ",
                                             request.device.str(), "; use backend gloo or mpi on the CPU"));
  }
  static auto* const make = reinterpret_cast<MakeNccl*>(cuda_half_symbol(make_nccl_symbol));
  CommunicatorPtr made;
  make(request, made);
  return made;
}

}  // namespace

BackendFactory nccl_backend() { return make_nccl; }

}  // namespace convoy
