#include "strategies/parts/stages/mailbox.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace convoy {

using Kind = Action::Kind;

void Mailbox::open() {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.clear();
  stopped_ = false;
}

void Mailbox::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

void Mailbox::give(const Key& key, Activations what) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_[key] = std::move(what);
  }
  changed_.notify_all();
}

Activations Mailbox::take(const Key& key) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = waiting_.end();
  changed_.wait(lock, [&] { return stopped_ || (found = waiting_.find(key)) != waiting_.end(); });
  if (stopped_) throw Stopped();
  Activations what = std::move(found->second);
  waiting_.erase(found);
  return what;
}

void DeviceLink::give_activations(int stage, int micro, Activations activations) {
  mailbox_.give({Kind::forward, stage, micro}, std::move(activations));
}

Activations DeviceLink::take_activations(int stage, int micro) { return received({Kind::forward, stage, micro}); }

void DeviceLink::give_gradients(int stage, int micro, TensorList gradients) {
  mailbox_.give({Kind::backward, stage, micro}, {std::move(gradients), {}});
}

TensorList DeviceLink::take_gradients(int stage, int micro) { return received({Kind::backward, stage, micro}).tensors; }

Activations DeviceLink::received(const Mailbox::Key& key) {
  at::NoGradGuard no_grad;
  Activations what = mailbox_.take(key);
  for (at::Tensor& tensor : what.tensors)
    if (tensor.device() != device_) tensor = tensor.to(device_, /*non_blocking=*/true);
  return what;
}

}  // namespace convoy
