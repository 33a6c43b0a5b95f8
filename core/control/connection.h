// Connection: one accepted socket of the control channel's server. It sends and receives frames without interpreting
// them.
//
// Threads: only the server's io thread. Ownership: shared by the server's table and by operations in progress.
#pragma once
#include <asio/buffer.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/control/socket.h"

namespace convoy {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Handler {
    std::function<void(Connection&, const Json&)> on_message;  // an exception closes the connection
    std::function<void(Connection&)> on_end;                   // called once
  };

  Connection(asio::io_context& io, Descriptor fd, uint64_t id, const Handler& handler);
  void start();
  void send(const Json& message);
  void send(std::shared_ptr<const std::string> frame);  // already encoded
  void end();                                           // closes; on_end follows at once
  void end_when_sent();                                 // closes after all frames are sent, such as a refusal

  uint64_t id() const { return id_; }
  int descriptor() { return socket_.native_handle(); }
  Clock::time_point opened() const { return opened_; }
  Clock::time_point last_heard() const { return last_heard_; }
  void restart_stall_timer(Clock::time_point since) { last_heard_ = since; }

  // True once the connection has presented job id and secret; the server sets it.
  bool admitted = false;
  int participant = 0;
  std::string name;
  bool orderly = false;  // it announced its end before it closed
  bool stalled = false;  // it was reported as stalled
  void admit();          // accepts frames of full size from now on

 private:
  void read();
  void write();

  asio::generic::stream_protocol::socket socket_;
  const uint64_t id_;
  const Handler& handler_;
  FrameReader reader_{hello_limit};
  std::string chunk_;
  std::deque<std::shared_ptr<const std::string>> outgoing_;
  size_t outgoing_bytes_ = 0;
  bool writing_ = false;
  bool ending_ = false;  // ends once outgoing_ is empty
  bool ended_ = false;
  Clock::time_point opened_ = Clock::now();
  Clock::time_point last_heard_ = opened_;
};

// --- Dispatcher: the thread that runs a channel's callbacks, in order ---
//
// It is separate from the io thread. So callbacks may call the channel, and a slow one delays no heartbeat.
// Threads: call `post` from any thread, also inside a callback. Exceptions of callbacks are logged.

// Starts a thread that blocks all signals, except those of its faults and the one that requests a thread's stack
// (api/thread_stacks.h).
std::thread start_thread(const std::string& name, std::function<void()> body);
int stack_signal();

// Returns the CPU time of a thread of this process that has not been joined; 0 if unknown.
double cpu_seconds_of(std::thread& thread);

class Dispatcher {
 public:
  explicit Dispatcher(const std::string& name);
  ~Dispatcher();  // close()

  void post(std::function<void()> callback);  // dropped after close
  bool on_own_thread() const;
  size_t waiting() const;  // number of callbacks that have not started
  double cpu_seconds() { return cpu_seconds_of(thread_); }
  // Runs the posted callbacks, then ends the thread. Inside a callback it returns at once and drops the callbacks that
  // have not started.
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which continues after a close from inside a callback
  std::thread thread_;
};

}  // namespace convoy
