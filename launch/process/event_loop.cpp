#include "launch/process/event_loop.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/files/limits.h"

namespace convoy {

EventLoop::EventLoop() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  // A blocked signal arrives here even if it is ignored. So stop_signals() leaves out ignored ones.
  for (const int number : stop_signals()) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // the console may be a closed pipe
  signal_fd_ = Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_fd_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signal_fd_.valid() || !wake_fd_.valid()) throw Error(Failure::io, "event loop: ", error_text(errno));
}

void EventLoop::on_readable(int fd, Task task) { readable_[fd] = std::move(task); }
void EventLoop::forget(int fd) { readable_.erase(fd); }

EventLoop::TimerId EventLoop::after(std::chrono::milliseconds delay, Task task) {
  timers_.emplace(std::chrono::steady_clock::now() + delay, Timer{next_timer_, std::move(task)});
  return next_timer_++;
}

void EventLoop::cancel(TimerId timer) {
  const auto found =
      std::find_if(timers_.begin(), timers_.end(), [timer](const auto& t) { return t.second.id == timer; });
  if (found != timers_.end()) timers_.erase(found);
}

void EventLoop::post(Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  const ssize_t written = write(wake_fd_.get(), &one, sizeof one);
  (void)written;
}

void EventLoop::run_until(const std::function<bool()>& done) {
  while (!done()) once();
}

bool EventLoop::run_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  bool late = false;
  const TimerId timer = after(limit, [&late] { late = true; });
  run_until([&] { return late || done(); });
  cancel(timer);
  return !late;
}

int EventLoop::wait_milliseconds() const {
  if (timers_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000000));
}

void EventLoop::once() {
  std::vector<pollfd> polled{{signal_fd_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
  for (const auto& [fd, task] : readable_) polled.push_back({fd, POLLIN, 0});
  if (poll(polled.data(), polled.size(), wait_milliseconds()) < 0 && errno != EINTR)
    throw Error(Failure::io, "event loop: poll: ", strerror(errno));
  // Reads output before ends: the last lines of a process precede its end.
  for (size_t i = 2; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    const auto found = readable_.find(polled[i].fd);
    if (found == readable_.end()) continue;
    const Task task = found->second;  // it may forget itself
    task();
  }
  if (polled[1].revents != 0) run_posted();
  if (polled[0].revents != 0) read_signals();
  run_timers();
}

void EventLoop::run_posted() {
  uint64_t count = 0;
  const ssize_t got = read(wake_fd_.get(), &count, sizeof count);
  (void)got;
  std::vector<Task> tasks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Task& task : tasks) task();
}

void EventLoop::read_signals() {
  signalfd_siginfo info{};
  while (read(signal_fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    if (signal_task_)
      signal_task_(number);
    else
      keep_signal(number);
  }
  int status = 0;
  // Several ends may have become one SIGCHLD.
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    if (child_task_) child_task_(pid, process_end(status));
}

void EventLoop::on_signal(std::function<void(int signal)> task) {
  signal_task_ = std::move(task);
  if (!signal_task_ || kept_signal_ == 0) return;
  post([this, signal = std::exchange(kept_signal_, 0)] {
    if (signal_task_)
      signal_task_(signal);
    else
      keep_signal(signal);
  });
}

void EventLoop::run_timers() {
  const auto now = std::chrono::steady_clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const Task task = std::move(timers_.begin()->second.task);
    timers_.erase(timers_.begin());
    task();
  }
}

namespace {
constexpr size_t longest_line = 64 << 10;
constexpr int reads_at_once = 16;  // then other descriptors are served
}  // namespace

void LineSplitter::add(const char* bytes, size_t size, const Sink& sink) {
  for (size_t i = 0; i < size; ++i) {
    const char c = bytes[i];
    if (c == '\n' || c == '\r') {
      // "\r\n" is one end, and progress bars begin with a return.
      if (!partial_.empty() || (c == '\n' && !after_return_)) sink(partial_);
      partial_.clear();
      after_return_ = c == '\r';
      continue;
    }
    after_return_ = false;
    partial_ += c;
    if (partial_.size() < longest_line) continue;
    sink(partial_);
    partial_.clear();
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!partial_.empty()) sink(partial_);
  partial_.clear();
}

bool read_available(int fd, LineSplitter& splitter, const LineSplitter::Sink& sink) {
  char buffer[32 << 10];
  for (int i = 0; i < reads_at_once; ++i) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0) {
      splitter.add(buffer, static_cast<size_t>(got), sink);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      const bool more_later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      return more_later;
    }
  }
  return true;
}

}  // namespace convoy
