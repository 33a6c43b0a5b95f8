// Ends of operations that other threads carry out.
#include "backends/completion.h"

#include "backends/plain_what.h"

#include <algorithm>
#include <utility>

namespace convoy {

void CompletionSignal::fail(const std::string& reason) {
  std::lock_guard lock(shared_->mutex);
  if (!shared_->failure) shared_->failure = reason;
  shared_->changed.notify_all();
}

bool CompletionSignal::failed() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->failure.has_value();
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
  const auto shared = signal_.shared_;  // whoever wakes may let go of this
  {
    std::lock_guard lock(shared->mutex);
    tensors_.clear();  // before anyone can see the end
    error_ = std::move(error);
    finished_ = true;
    --shared->unfinished;
  }
  // Without the lock, for which the one who wakes would only wait again.
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
  // Why a peer closed its connections says more than that it did, and comes over the control channel.
  shared.changed.wait_for(lock, std::chrono::milliseconds(500), [&] { return shared.failure.has_value(); });
  if (shared.failure) throw CommError(Failure::peer_lost, -1, *shared.failure);
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    throw CommError(Failure::peer_lost, -1, str("the connection to a peer broke: ", plain_what(error)));
  }
}

CompletionPending::CompletionPending(CompletionSignal signal, std::function<void()> after)
    : signal_(std::move(signal)), after_(std::move(after)) {}

void CompletionPending::add(std::shared_ptr<Completion> completion) { completions_.push_back(std::move(completion)); }

bool CompletionPending::done() {
  return std::all_of(completions_.begin(), completions_.end(), [](const auto& one) { return one->done(); });
}

bool CompletionPending::wait_until(Clock::time_point deadline) {
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
