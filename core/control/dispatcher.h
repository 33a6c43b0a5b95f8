// Dispatcher: the one thread on which a channel's callbacks run, in order.
//
// Apart from the thread that moves bytes, so that a callback may call back into the channel and a slow one delays no
// heartbeat. Threads: `post` from any thread, also from inside a callback. What a callback throws is logged.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace convoy {

// A thread that no signal handler of the process runs on, except for faults of its own.
// The one that asks a thread for its stack (launch/rank/own_stacks.h) is let through.
std::thread start_thread(const std::string& name, std::function<void()> body);
int stack_signal();

// Processor time of a thread of this process that has not been joined; 0 where it cannot be told.
double cpu_seconds_of(std::thread& thread);

class Dispatcher {
 public:
  explicit Dispatcher(const std::string& name);
  ~Dispatcher();  // close()

  void post(std::function<void()> callback);  // dropped after close
  bool on_own_thread() const;
  size_t waiting() const;  // callbacks that have not begun
  double cpu_seconds() { return cpu_seconds_of(thread_); }
  // Runs what was posted before, then ends the thread. Called from inside a callback it returns at once, and what
  // was still waiting is dropped.
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which outlives a close from inside a callback
  std::thread thread_;
};

}  // namespace convoy
