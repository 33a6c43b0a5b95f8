#include "strategies/parts/buffer_pool.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace convoy {
namespace {

int64_t size_of(const at::Tensor& buffer) { return buffer.numel(); }
bool smaller(const at::Tensor& a, const at::Tensor& b) { return size_of(a) < size_of(b); }

}  // namespace

at::Tensor BufferPool::take(int64_t bytes) {
  std::sort(free_.begin(), free_.end(), smaller);
  auto fit = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) { return size_of(one) >= bytes; });
  // Much too large a one would soon be wanted by what it was made for.
  if (fit != free_.end() && size_of(*fit) < 2 * bytes) {
    at::Tensor found = std::move(*fit);
    free_.erase(fit);
    return found;
  }
  if (fit != free_.begin()) {
    --fit;
    bytes_ -= size_of(*fit);
    free_.erase(fit);
  }
  bytes_ += bytes;
  peak_ = std::max(peak_, bytes_);
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

void BufferPool::give(at::Tensor buffer) {
  if (buffer.defined()) free_.push_back(std::move(buffer));
}

at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype) {
  return buffer.narrow(0, 0, elements * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
}

}  // namespace convoy
