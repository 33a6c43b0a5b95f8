// Reuse of a tensor's memory as soon as neither a batch, a view of it nor an autograd graph holds it.
#include "core/data/buffers.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace convoy {
namespace {

// What a consumer can hold at a time beside the loader's queue; tensors beyond it are simply not kept.
constexpr size_t most_kept = 48;

bool unused(const at::Tensor& tensor) { return tensor.use_count() == 1 && tensor.storage().use_count() == 1; }

}  // namespace

at::Tensor Buffers::take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) {
  auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (pinned_) return at::empty(shape, options.pinned_memory(true));

  auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == kept_.end()) {
    kept_.emplace_back(name, std::vector<at::Tensor>{});
    found = kept_.end() - 1;
  }
  auto& tensors = found->second;
  at::Tensor* replaceable = nullptr;
  for (auto& tensor : tensors) {
    if (!unused(tensor)) continue;
    if (tensor.sizes() == shape && tensor.scalar_type() == dtype && tensor.is_contiguous()) return tensor;
    replaceable = &tensor;
  }
  auto fresh = at::empty(shape, options);
  if (replaceable != nullptr && tensors.size() >= most_kept / 2) {
    *replaceable = fresh;  // of another shape, as the last batch of an epoch has
  } else if (tensors.size() < most_kept) {
    tensors.push_back(fresh);
  }
  return fresh;
}

}  // namespace convoy
