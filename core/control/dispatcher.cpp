// A queue, a condition variable and a thread.
#include "core/control/dispatcher.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>

#include "core/error.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/text.h"

namespace convoy {

int stack_signal() { return SIGRTMIN + 6; }

double cpu_seconds_of(std::thread& thread) {
  clockid_t clock{};
  timespec used{};
  if (!thread.joinable() || pthread_getcpuclockid(thread.native_handle(), &clock) != 0) return 0;
  if (clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::thread start_thread(const std::string& name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, stack_signal()}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(Failure::out_of_memory, no_thread_text());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  return thread;
}

struct Dispatcher::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool closed = false;

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closed || !queue.empty(); });
      if (queue.empty()) return;
      std::function<void()> callback = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      try {
        callback();
      } catch (const std::exception& error) {
        log::error(str("a callback of the control channel failed: ", error.what()));
      }
      callback = nullptr;  // may own the last reference to a channel, so not under the lock
      lock.lock();
    }
  }
};

Dispatcher::Dispatcher(const std::string& name) : state_(std::make_shared<State>()) {
  thread_ = start_thread(name, [state = state_] { state->run(); });
}

Dispatcher::~Dispatcher() { close(); }

void Dispatcher::post(std::function<void()> callback) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->closed) return;
  state_->queue.push_back(std::move(callback));
  state_->changed.notify_one();
}

bool Dispatcher::on_own_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

size_t Dispatcher::waiting() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->queue.size();
}

void Dispatcher::close() {
  if (!thread_.joinable()) return;
  const bool inside = on_own_thread();
  std::deque<std::function<void()>> dropped;  // may own whoever owns this, so not under the lock
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
    if (inside) dropped.swap(state_->queue);
    state_->changed.notify_one();
  }
  if (inside) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace convoy
