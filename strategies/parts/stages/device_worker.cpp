#include "strategies/parts/stages/device_worker.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "core/binding.h"
#include "core/error.h"

namespace convoy {

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
    // The first question makes this thread take the number that was set last in any; only then its own stays.
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
