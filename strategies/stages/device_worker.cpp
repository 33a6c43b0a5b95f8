#include "strategies/stages/device_worker.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <utility>

#include "core/base/error.h"
#include "core/files/limits.h"

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

DeviceWorker::DeviceWorker(const WorkerSettings& settings) : thread_([this, settings] { work(settings); }) {
  try {
    wait();
  } catch (...) {
    thread_.join();
    throw;
  }
}

DeviceWorker::~DeviceWorker() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWorker::start(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CONVOY_CHECK(!busy_, "a device is given a second task");
    task_ = std::move(task);
    busy_ = true;
  }
  changed_.notify_all();
}

void DeviceWorker::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void DeviceWorker::work(const WorkerSettings& settings) {
  std::exception_ptr failure;
  try {
    bind_this_thread(settings.cores);
    // The first query makes this thread adopt the global number. Set the thread's number only afterwards.
    at::get_num_threads();
    at::set_num_threads(settings.threads);
    cores_ = bound_cores();
    threads_ = at::get_num_threads();
  } catch (...) {
    failure = std::current_exception();
  }
  c10::DeviceGuard on_device(settings.device);
  const bool ready = !failure;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    failure_ = failure;
    busy_ = false;
    changed_.notify_all();
    if (!ready) return;
    changed_.wait(lock, [this] { return busy_ || ending_; });
    if (!busy_) return;
    const std::function<void()> task = std::exchange(task_, nullptr);
    lock.unlock();
    failure = nullptr;
    try {
      task();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
  }
}

}  // namespace convoy
