// Connection: one accepted socket of the control channel's server, framed both ways. Knows nothing of what frames mean.
//
// Threads: the server's io thread only. Ownership: shared by the server's table and by what is under way.
#pragma once
#include <asio/buffer.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/control/frame.h"
#include "core/control/socket.h"

namespace convoy {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Handler {
    std::function<void(Connection&, const Json&)> on_message;  // what it throws closes the connection
    std::function<void(Connection&)> on_end;                   // once
  };

  Connection(asio::io_context& io, Descriptor fd, uint64_t id, const Handler& handler);
  void start();
  void send(const Json& message);
  void send(std::shared_ptr<const std::string> frame);  // already encoded
  void end();                                           // closes; on_end follows at once
  void end_when_sent();                                 // after a refusal

  uint64_t id() const { return id_; }
  int descriptor() { return socket_.native_handle(); }
  Clock::time_point opened() const { return opened_; }
  Clock::time_point last_heard() const { return last_heard_; }
  void excuse(Clock::time_point since) { last_heard_ = since; }  // silence counts from here on

  // Set by the server once the connection has shown job id and secret.
  bool admitted = false;
  int participant = 0;
  std::string name;
  bool orderly = false;  // said goodbye
  bool silent = false;   // has been told as silent
  void admit();          // from now on whole-sized frames

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
  bool ending_ = false;  // once outgoing_ is empty
  bool ended_ = false;
  Clock::time_point opened_ = Clock::now();
  Clock::time_point last_heard_ = opened_;
};

}  // namespace convoy
