// Waiting for operations that other threads run.

#include "backends/communicator/completion.h"

#include <sys/prctl.h>
#include <algorithm>
#include <utility>

#include "backends/communicator/call.h"

namespace convoy {
namespace {
constexpr std::chrono::milliseconds period{50};
}  // namespace

DeadlineWatch::DeadlineWatch(std::function<void()> on_start)
    : thread_([this, on_start = std::move(on_start)] { run(on_start); }) {}

DeadlineWatch::~DeadlineWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeadlineWatch::follow(std::function<bool()> ended, Clock::time_point deadline, std::function<void()> late) {
  std::lock_guard lock(mutex_);
  fresh_.push_back({std::move(ended), deadline, std::move(late)});
  if (fresh_.size() == 1) changed_.notify_all();
}

bool DeadlineWatch::over(Followed& one) {
  try {
    if (one.ended()) return true;
    if (Clock::now() < one.deadline) return false;
  } catch (const std::exception&) {
    // The device has failed and cannot be queried any more.
  }
  one.late();
  return true;
}

void DeadlineWatch::run(const std::function<void()>& on_start) {
  prctl(PR_SET_NAME, "convoy-deadline");
  if (on_start) on_start();
  std::list<Followed> followed;
  std::unique_lock lock(mutex_);
  while (true) {
    // The watch sleeps while it follows no operation; otherwise new ones wait for the next poll.
    if (followed.empty())
      changed_.wait(lock, [this] { return stop_ || !fresh_.empty(); });
    else
      changed_.wait_for(lock, period, [this] { return stop_; });
    if (stop_) return;
    followed.splice(followed.end(), fresh_);
    lock.unlock();
    followed.remove_if(over);
    lock.lock();
  }
}

void CompletionSignal::fail(const std::string& reason) {
  std::lock_guard lock(shared_->mutex);
  if (!shared_->failure) shared_->failure = reason;
  shared_->changed.notify_all();
}

bool CompletionSignal::busy() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->unfinished > 0;
}

Completion::Completion(CompletionSignal signal, std::vector<at::Tensor> tensors)
    : signal_(std::move(signal)), tensors_(std::move(tensors)) {
  std::lock_guard lock(signal_.shared_->mutex);
  ++signal_.shared_->unfinished;
}

void Completion::finish(std::exception_ptr error) {
  const auto shared = signal_.shared_;  // the woken thread may destroy this object
  {
    std::lock_guard lock(shared->mutex);
    tensors_.clear();  // dropped before a waiter sees the end
    error_ = std::move(error);
    finished_ = true;
    --shared->unfinished;
  }
  // Notified without the lock, or the woken thread would block on it.
  shared->changed.notify_all();
}

bool Completion::done() {
  std::lock_guard lock(signal_.shared_->mutex);
  return finished_ || signal_.shared_->failure;
}

bool Completion::wait_until(Clock::time_point deadline) {
  auto& shared = *signal_.shared_;
  std::unique_lock lock(shared.mutex);
  if (!shared.changed.wait_until(lock, deadline, [&] { return finished_ || shared.failure; })) return false;
  if (finished_ && !error_) return true;
  // The failure cause arrives over the control channel, and is more precise than the error of a closed connection. So
  // wait for it briefly.
  shared.changed.wait_for(lock, std::chrono::milliseconds(500), [&] { return shared.failure.has_value(); });
  if (shared.failure) throw CommError(Failure::peer_lost, -1, *shared.failure);
  try {
    std::rethrow_exception(error_);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(Failure::peer_lost, -1, "the connection to a peer broke: ", message_without_backtrace(error));
  }
}

bool CompletionPendingOperation::done() {
  return std::all_of(completions_.begin(), completions_.end(), [](const auto& one) { return one->done(); });
}

bool CompletionPendingOperation::wait_until(Clock::time_point deadline) {
  for (auto& one : completions_) {
    if (!one->wait_until(deadline)) return false;
  }
  if (after_) std::exchange(after_, {})();
  return true;
}

WaiterPool::~WaiterPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

void WaiterPool::run(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (idle_ < jobs_.size()) threads_.emplace_back([this] { work(); });
  changed_.notify_one();
}

void WaiterPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace convoy
