#include "strategies/parts/replicas/buffer_sync.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/core/ScalarType.h>

#include <map>

#include "core/error.h"

namespace convoy {

BufferSync::BufferSync(const std::vector<NamedBuffer>& buffers, CommunicatorPtr group, const std::string& how)
    : group_(std::move(group)) {
  at::NoGradGuard no_grad;
  if (how == "local") return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const NamedBuffer& buffer : buffers) by_dtype[buffer.value.scalar_type()].push_back(buffer.value);
  for (auto& [dtype, tensors] : by_dtype) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : tensors) pieces.push_back(tensor.reshape({-1}));
    Part part;
    part.flat = at::cat(pieces);
    part.mean = how == "mean" && at::isFloatingType(dtype);
    int64_t offset = 0;
    for (at::Tensor& tensor : tensors) {
      const int64_t elements = tensor.numel();
      tensor.set_data(part.flat.narrow(0, offset, elements).view(tensor.sizes()));
      offset += elements;
    }
    parts_.push_back(std::move(part));
  }
}

void BufferSync::start() {
  for (Part& part : parts_) {
    const CallOptions call{convoy::str("buffers of ", part.flat.dtype().name()), {}};
    part.work = part.mean ? group_->all_reduce(part.flat, ReduceOp::sum, call) : group_->broadcast(part.flat, 0, call);
  }
}

void BufferSync::finish() {
  for (Part& part : parts_) {
    part.work->wait();
    part.work = nullptr;
    if (part.mean) part.flat.div_(group_->size());
  }
}

}  // namespace convoy
