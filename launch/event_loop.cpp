#include "launch/event_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launch/signals.h"

namespace convoy {

EventLoop::EventLoop() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  // A blocked signal arrives here even where it is ignored, so ignored ones stay out.
  for (const int number : stop_signals()) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // our console may be a pipe that was closed
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signal_fd_ < 0 || wake_fd_ < 0) throw Error(Failure::io, str("event loop: ", strerror(errno)));
}

EventLoop::~EventLoop() {
  close(signal_fd_);
  close(wake_fd_);
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
  const ssize_t written = write(wake_fd_, &one, sizeof one);
  (void)written;
}

void EventLoop::run_until(const std::function<bool()>& done) {
  while (!done()) once();
}

int EventLoop::wait_milliseconds() const {
  if (timers_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000000));
}

void EventLoop::once() {
  std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  for (const auto& [fd, task] : readable_) polled.push_back({fd, POLLIN, 0});
  if (poll(polled.data(), polled.size(), wait_milliseconds()) < 0 && errno != EINTR)
    throw Error(Failure::io, str("event loop: poll: ", strerror(errno)));
  // Output before ends: a process's last words are read before its end is told.
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
  const ssize_t got = read(wake_fd_, &count, sizeof count);
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
  while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number != SIGCHLD && signal_task_) signal_task_(number);
  }
  int status = 0;
  // Several ends may have become one SIGCHLD.
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    if (child_task_) child_task_(pid, process_end(status));
}

void EventLoop::run_timers() {
  const auto now = std::chrono::steady_clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const Task task = std::move(timers_.begin()->second.task);
    timers_.erase(timers_.begin());
    task();
  }
}

}  // namespace convoy
