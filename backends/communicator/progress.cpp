// ProgressEngine and its background thread.
#include "backends/communicator/progress.h"

#include <c10/core/DeviceGuard.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>

namespace convoy {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr auto at_once = microseconds(200);  // a wait is prompt if it begins within this time after its operation
// A prompt wait adds 1 to a score of at most prompt_most; a late wait halves it. From prompt_enough on, the next wait
// is expected to be prompt too.
constexpr int prompt_most = 64, prompt_enough = 32;

}  // namespace

std::string nothing_from(const std::vector<int>& ranks) {
  return ranks.empty() ? "" : "nothing from " + listed_ranks(ranks);
}

bool ProgressGroup::fail(const CommError& error) {
  std::lock_guard lock(mutex_);
  if (failed_) return false;
  failure_ = error;
  failed_ = true;
  return true;
}

void ProgressGroup::check() const {
  if (!failed_) return;
  std::lock_guard lock(mutex_);
  throw CommError(*failure_);
}

void ProgressOperation::check() const {
  if (over()) {
    if (error_) std::rethrow_exception(error_);
    return;
  }
  owner_->check();
}

ProgressEngine::ProgressEngine(const char* thread_name) : thread_name_(thread_name) {
  background_ = std::thread([this] { run_background(); });
}

ProgressEngine::~ProgressEngine() { stop(); }

void ProgressEngine::stop() {
  {
    std::lock_guard lock(sleep_mutex_);
    stop_ = true;
    sleep_.notify_all();
  }
  if (background_.joinable()) background_.join();
}

bool ProgressEngine::step(ProgressOperation& operation, bool& moved) {
  c10::OptionalDeviceGuard guard;  // any thread may run this, so it selects the device of the tensors
  if (!operation.tensors_.empty() && !operation.tensors_.front().is_cpu())
    guard.reset_device(operation.tensors_.front().device());
  try {
    if (!operation.advance(moved)) return false;
    operation.tensors_.clear();
  } catch (const std::exception&) {
    operation.error_ = std::current_exception();
  }
  operation.over_.store(true, std::memory_order_release);
  return true;
}

void ProgressEngine::start(const ProgressOperationPtr& operation) {
  std::lock_guard lock(mutex_);
  bool moved = false;
  if (step(*operation, moved)) {
    if (operation->error_) abandoned_.push_back(operation);
    return;
  }
  operation->started_ = Clock::now();
  active_.push_back(operation);
  ++issued_;
  ++under_way_;
  if (asleep_) {
    std::lock_guard sleep_lock(sleep_mutex_);
    sleep_.notify_one();
  }
}

bool ProgressEngine::poll_all() {
  bool moved = false;
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    auto& operation = active_[i];
    if (!step(*operation, moved)) {
      if (kept != i) active_[kept] = std::move(operation);
      ++kept;
      continue;
    }
    moved = true;
    --under_way_;
    if (operation->error_) abandoned_.push_back(std::move(operation));
  }
  active_.resize(kept);
  return moved;
}

bool ProgressEngine::poll(const ProgressOperation& operation) {
  if (operation.over() || operation.failed()) return true;
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock) poll_all();
  return operation.over() || operation.failed();
}

void ProgressEngine::count_wait(const ProgressOperation& operation) {
  if (operation.over() || operation.awaited_.exchange(true)) return;
  if (Clock::now() - operation.started_ > at_once)
    prompt_ = prompt_ / 2;
  else if (prompt_ < prompt_most)
    ++prompt_;
}

bool ProgressEngine::has_unawaited() const {
  const auto now = Clock::now();
  return std::any_of(active_.begin(), active_.end(),
                     [&](const auto& one) { return !one->awaited_ && now - one->started_ > at_once; });
}

bool ProgressEngine::wait_until(const ProgressOperation& operation, Clock::time_point deadline) {
  count_wait(operation);
  struct Count {
    explicit Count(std::atomic<int>& n) : n_(n) { ++n_; }
    ~Count() { --n_; }
    std::atomic<int>& n_;
  } count(waiters_);
  auto last = Clock::now();
  while (!operation.over() && !operation.failed()) {
    bool moved = false;
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) moved = poll_all();
    if (moved) {
      last = Clock::now();
      continue;
    }
    auto now = Clock::now();
    if (now > deadline) return operation.over();
    // Ranks may share a core, and a peer may compute for long: yield first, then sleep.
    if (now - last > milliseconds(20)) {
      std::this_thread::sleep_for(microseconds(now - last > milliseconds(200) ? 200 : 20));
    } else if (now - last > microseconds(20)) {
      sched_yield();
    }
  }
  return true;
}

std::string ProgressEngine::missing(const ProgressOperation& operation) {
  std::lock_guard lock(mutex_);
  return operation.over() ? "" : operation.missing();
}

void ProgressEngine::fail(ProgressGroup& group, const std::string& reason) {
  if (!group.fail(CommError(Failure::peer_lost, -1, reason))) return;
  std::lock_guard lock(mutex_);
  auto first = std::stable_partition(active_.begin(), active_.end(),
                                     [&](const auto& operation) { return operation->owner_.get() != &group; });
  for (auto it = first; it != active_.end(); ++it) {
    abandoned_.push_back(std::move(*it));
    --under_way_;
  }
  active_.erase(first, active_.end());
}

void ProgressEngine::run_background() {
  prctl(PR_SET_NAME, thread_name_);
  prctl(PR_SET_TIMERSLACK, 1000UL);
  constexpr auto short_nap = microseconds(50), long_nap = microseconds(500), rare_nap = microseconds(20000);
  // A nap of a poll grows by half, so that a peer is noticed after at most half of the time that it let this rank wait.
  // Operations that begin behind a silent one are polled as often as long_nap again.
  constexpr auto longest_poll_nap = microseconds(4000);
  auto nap = short_nap;
  int64_t seen = 0;
  auto last_use = Clock::now();
  std::unique_lock lock(sleep_mutex_);
  while (!stop_) {
    const auto idle_nap = prompt_ >= prompt_enough ? rare_nap : long_nap;
    if (issued_ != seen || under_way_ > 0) last_use = Clock::now();
    if (issued_ != seen || waiters_ > 0) nap = std::min<microseconds>(nap, long_nap);
    seen = issued_;
    if (under_way_ == 0) {
      // Waking this thread takes time of the thread that issues an operation. So between the operations of a light step
      // it wakes by itself at intervals. In a longer pause these would take more time.
      if (Clock::now() - last_use > (prompt_ >= prompt_enough ? milliseconds(50) : milliseconds(2))) {
        asleep_ = true;
        if (under_way_ == 0) sleep_.wait(lock, [this] { return stop_ || under_way_ > 0; });
        asleep_ = false;
        last_use = Clock::now();
      } else {
        sleep_.wait_for(lock, idle_nap);
      }
      nap = short_nap;
      continue;
    }
    if (waiters_ > 0) {
      sleep_.wait_for(lock, idle_nap);
      continue;
    }
    lock.unlock();
    bool moved = false;
    if (std::unique_lock engine(mutex_, std::try_to_lock); engine) {
      if (prompt_ > 0 && has_unawaited()) prompt_ = 0;
      moved = poll_all();
    }
    lock.lock();
    if (moved) {
      nap = short_nap;
      lock.unlock();
      sched_yield();
      lock.lock();
      continue;
    }
    asleep_ = nap > long_nap;
    if (issued_ == seen) sleep_.wait_for(lock, nap);
    asleep_ = false;
    nap = std::min(longest_poll_nap, nap + nap / 2);
  }
}

bool ProgressPendingOperation::wait_until(Clock::time_point deadline) {
  if (!engine_->wait_until(*operation_, deadline)) return false;
  operation_->check();
  return true;
}

}  // namespace convoy
