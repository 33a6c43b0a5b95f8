// The one loop of `convoy`: signals, ended children, readable descriptors, timers, and tasks posted by other threads.
//
// Make it in the main thread before any other thread starts: it blocks the signals that it reads. All callbacks run in
// the thread that runs the loop; only `post` may be called from another.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "launch/process.h"

namespace convoy {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = uint64_t;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void on_readable(int fd, Task task);  // also at its end; `forget` it before closing
  void forget(int fd);
  TimerId after(std::chrono::milliseconds delay, Task task);
  void cancel(TimerId timer);
  void on_signal(std::function<void(int signal)> task) { signal_task_ = std::move(task); }
  // Every child that was waited for, adopted grandchildren included.
  void on_child(std::function<void(pid_t, const ProcessEnd&)> task) { child_task_ = std::move(task); }
  void post(Task task);

  // Runs until `done` holds, asked after every event.
  void run_until(const std::function<bool()>& done);

 private:
  void once();
  void read_signals();
  void run_posted();
  void run_timers();
  int wait_milliseconds() const;

  struct Timer {
    TimerId id;
    Task task;
  };
  int signal_fd_ = -1;
  int wake_fd_ = -1;
  std::map<int, Task> readable_;
  std::multimap<std::chrono::steady_clock::time_point, Timer> timers_;
  TimerId next_timer_ = 1;
  std::function<void(int)> signal_task_;
  std::function<void(pid_t, const ProcessEnd&)> child_task_;
  std::mutex mutex_;  // of posted_
  std::vector<Task> posted_;
};

}  // namespace convoy
