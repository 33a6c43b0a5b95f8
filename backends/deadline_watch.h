// DeadlineWatch: tells when something that nobody waits for on the host has not ended in time (operations on a device).
//
// Threads: thread-safe; one thread of its own, which looks every 50 ms at what has not ended. Life: what is still followed
// when it is destroyed is forgotten.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "backends/transport.h"

namespace convoy {

class DeadlineWatch {
 public:
  explicit DeadlineWatch(std::function<void()> on_start = {});  // runs first in its thread
  ~DeadlineWatch();
  DeadlineWatch(const DeadlineWatch&) = delete;
  DeadlineWatch& operator=(const DeadlineWatch&) = delete;

  // Asks `ended` until it says so; when it does not by `deadline`, calls `late` once and forgets it. Both in the watch's
  // thread; `ended` must not block, and what it throws counts as late.
  void follow(std::function<bool()> ended, Clock::time_point deadline, std::function<void()> late);

 private:
  struct Followed {
    std::function<bool()> ended;
    Clock::time_point deadline;
    std::function<void()> late;
  };
  void run(const std::function<void()>& on_start);
  static bool over(Followed& one);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Followed> fresh_;  // not yet looked at
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace convoy
