// The event loop of `convoy`: signals, ended children, readable descriptors, timers, and tasks posted by other threads.
//
// Construct it in the main thread before any other thread starts: it blocks the signals that it reads. Callbacks run in
// the thread that runs the loop. Only `post` may be called from another thread.
#pragma once
#include <signal.h>
#include <sys/types.h>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/control/signals.h"
#include "core/files/files.h"
#include "launch/process/process.h"

namespace convoy {

// Rounded up.
inline std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

class EventLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = uint64_t;

  EventLoop();

  void on_readable(int fd, Task task);  // also called at the end of the stream; call `forget` before closing
  void forget(int fd);
  TimerId after(std::chrono::milliseconds delay, Task task);
  void cancel(TimerId timer);
  // A signal that arrives without a task waits for the next task.
  void on_signal(std::function<void(int signal)> task);
  // Keeps a signal that the present task cannot use, for the next task.
  void keep_signal(int signal) { kept_signal_ = signal; }
  // Called for every child that ended, including adopted grandchildren.
  void on_child(std::function<void(pid_t, const ProcessEnd&)> task) { child_task_ = std::move(task); }
  void post(Task task);

  // Runs until `done` returns true; checked after every event.
  void run_until(const std::function<bool()>& done);
  // The same for at most `limit`; false if the limit ended it.
  bool run_until(const std::function<bool()>& done, std::chrono::milliseconds limit);

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
  Descriptor signal_fd_, wake_fd_;
  std::map<int, Task> readable_;
  std::multimap<std::chrono::steady_clock::time_point, Timer> timers_;
  TimerId next_timer_ = 1;
  std::function<void(int)> signal_task_;
  int kept_signal_ = 0;
  std::function<void(pid_t, const ProcessEnd&)> child_task_;
  std::mutex mutex_;  // guards posted_
  std::vector<Task> posted_;
};

// Tasks of one object in an event loop. Those that are due after its destruction do not run. Only `post` may be called
// from another thread.
class OwnedTasks {
 public:
  explicit OwnedTasks(EventLoop& loop) : loop_(loop) {}
  ~OwnedTasks() { *alive_ = false; }
  OwnedTasks(const OwnedTasks&) = delete;
  OwnedTasks& operator=(const OwnedTasks&) = delete;

  void post(EventLoop::Task task) { loop_.post(while_alive(std::move(task))); }
  EventLoop::TimerId after(std::chrono::milliseconds delay, EventLoop::Task task) {
    return loop_.after(delay, while_alive(std::move(task)));
  }

 private:
  EventLoop::Task while_alive(EventLoop::Task task) const {
    return [alive = alive_, task = std::move(task)] {
      if (*alive) task();
    };
  }

  EventLoop& loop_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Splits the output of a process into lines without newlines. A line over 64 KiB becomes several lines, so that memory
// is bounded. A carriage return ends a line too, because progress bars use it.
class LineSplitter {
 public:
  using Sink = std::function<void(const std::string&)>;
  void add(const char* bytes, size_t size, const Sink& sink);
  void finish(const Sink& sink);  // the last line may lack a newline

 private:
  std::string partial_;
  bool after_return_ = false;
};

// Reads available bytes of a non-blocking descriptor; false at the end of the stream.
bool read_available(int fd, LineSplitter& splitter, const LineSplitter::Sink& sink);

// Groups signals into requests to stop. `timeout` signals its child and then the child's whole group, and Ctrl-C
// reaches every process of a terminal: one request arrives twice, microseconds apart.
class StopRequests {
 public:
  using Clock = std::chrono::steady_clock;
  // Signals within this time are one request: a person cannot repeat a request so fast.
  static constexpr std::chrono::milliseconds same{500};

  enum class Kind { first, echo, again };
  // Only SIGTERM and SIGINT repeat a request: the kernel repeats SIGXCPU every second, and a closing terminal sends
  // SIGHUP to a run that may have a request already. SIGQUIT does not wait for a step.
  Kind received(Clock::time_point now, int signal) {
    if (signal == SIGQUIT) return Kind::again;
    if (!first_) {
      first_ = now;
      return Kind::first;
    }
    const bool asks = signal == SIGTERM || signal == SIGINT;
    return asks && now - *first_ >= same ? Kind::again : Kind::echo;
  }

 private:
  std::optional<Clock::time_point> first_;
};

}  // namespace convoy
