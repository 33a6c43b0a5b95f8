#include "strategies/parts/shards/buffer_pool.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

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
    kept_ -= size_of(found);
    return lend(std::move(found));
  }
  lent_ += bytes;
  peak_ = std::max(peak_, lent_);
  make_room();
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

at::Tensor BufferPool::lend(at::Tensor buffer) {
  lent_ += size_of(buffer);
  peak_ = std::max(peak_, lent_);
  make_room();
  return buffer;
}

// Gives up one that is as large as need be, or the largest, and so on.
void BufferPool::make_room() {
  while (!free_.empty() && lent_ + kept_ > peak_) {
    const int64_t excess = lent_ + kept_ - peak_;
    auto fit = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) { return size_of(one) >= excess; });
    if (fit == free_.end()) --fit;
    kept_ -= size_of(*fit);
    free_.erase(fit);
  }
}

void BufferPool::give(at::Tensor buffer) {
  if (!buffer.defined()) return;
  lent_ -= size_of(buffer);
  kept_ += size_of(buffer);
  free_.push_back(std::move(buffer));
}

at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype) {
  return buffer.narrow(0, 0, elements * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
}

}  // namespace convoy
