// Copies between callers' tensors and tensors that transports accept.
#include "backends/communicator/staging.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace convoy {

// Uses the virtual guard, so that it needs no device's headers.
void finish_stream(const at::Device& device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl guard(device.type());
  guard.getStream(device).synchronize();
}

Staging::Staging(std::vector<at::DeviceType> taken, at::Device target) : taken_(std::move(taken)), target_(target) {}

bool Staging::fits(const at::Tensor& tensor) const {
  return tensor.is_contiguous() && std::find(taken_.begin(), taken_.end(), tensor.device().type()) != taken_.end();
}

at::Tensor Staging::replacement(const at::Tensor& tensor, bool filled) const {
  bool taken = std::find(taken_.begin(), taken_.end(), tensor.device().type()) != taken_.end();
  at::Device device = taken ? tensor.device() : target_;
  bool from_device = device.is_cpu() && !tensor.device().is_cpu();
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(device).pinned_memory(from_device);
  at::Tensor copy = at::empty(tensor.sizes(), options);
  if (filled && tensor.numel() > 0) {
    copy.copy_(tensor, /*non_blocking=*/from_device);
    if (from_device) finish_stream(tensor.device());
  }
  return copy;
}

at::Tensor Staging::input(const at::Tensor& tensor) {
  at::Tensor given = fits(tensor) ? tensor : replacement(tensor, true);
  kept_.push_back(given);
  return given;
}

at::Tensor Staging::output(const at::Tensor& tensor, bool filled) {
  if (fits(tensor)) {
    kept_.push_back(tensor);
    return tensor;
  }
  at::Tensor given = replacement(tensor, filled);
  back_.emplace_back(tensor, given);
  return given;
}

void Staging::finish() {
  at::NoGradGuard no_grad;
  for (auto& [to, from] : back_) {
    // The current stream orders a copy to a device; the caching allocator reuses pinned memory only after the copy.
    const bool to_device = !to.device().is_cpu() && from.device().is_cpu();
    to.copy_(from, /*non_blocking=*/to_device);
  }
}

void Staging::drop() {
  kept_.clear();
  back_.clear();
}

}  // namespace convoy
