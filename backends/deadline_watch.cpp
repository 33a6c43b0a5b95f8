#include "backends/deadline_watch.h"

#include <sys/prctl.h>

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
    // The device cannot be asked any more.
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
    // With nothing to follow it sleeps; else new ones may wait for the next look.
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

}  // namespace convoy
