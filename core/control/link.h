// Link: a client's connection to the control channel's server, after the greeting. It moves frames, matches replies
// to requests and runs callbacks. client.cpp interprets the requests.
//
// Threads: every method from any thread. The io thread of the link moves bytes; its dispatcher runs callbacks. The
// client and its threads share the link, so a callback may destroy the client.
#pragma once
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "core/control/channel.h"
#include "core/control/connection.h"
#include "core/control/socket.h"

namespace convoy {

class Link : public std::enable_shared_from_this<Link> {
 public:
  using WatchCallback = std::function<void(const std::string& key, const std::string& value)>;

  Link(Descriptor fd, std::string server, Timeout heartbeat, std::optional<Abort> aborted, FrameReader reader);
  void start();
  // Announces the end of the connection, waits up to one second until the server has read all frames, and ends the
  // threads. Calls that still wait throw.
  void close();

  // Sends `request` (adds an "id") and waits for its reply. After `timeout` it asks the server for an immediate answer
  // and returns that. `watch` receives all later messages of the server with this id. Throws CommError(peer_lost) if
  // the server is gone, CommError(rendezvous) if it does not answer.
  Json call(Json request, Timeout timeout, bool cancel, WatchCallback watch = nullptr);
  // Sends, and calls `reply` on the dispatcher's thread with the answer. Does not call it if the server ends first.
  void call_later(Json request, std::function<void(const Json&)> reply);
  void send(const Json& message, bool droppable);  // one-way; never blocks; does nothing after the connection is lost

  void stop_sending();
  void abort(const Abort& reason);
  std::optional<Abort> aborted();
  void on_abort(std::function<void(const Abort&)> callback);
  void on_lost(std::function<void()> callback);
  void on_heartbeat(std::function<std::optional<Json>()> body);
  double cpu_seconds();
  Timeout reply_limit() const;   // time limit of a reply that needs only the server
  Timeout cancel_limit() const;  // limit for the reply to a cancelled wait: a stopped server may continue

 private:
  struct Waiting {
    std::condition_variable changed;
    std::optional<Json> reply;
    bool inside = false;  // the waiting thread is the dispatcher's
  };
  struct Outgoing {
    std::string frame;
    bool droppable;
  };
  using Lock = std::unique_lock<std::mutex>;

  std::string encode(const Json& request) const;
  void throw_if_lost(const Waiting& waiting) const;
  void enqueue(Lock& lock, std::string frame, bool droppable);
  void flush();           // io thread
  void read();            // io thread
  void send_heartbeat();  // io thread
  void received(Json message);
  void reason_received(const Abort& reason);
  void lose(const std::string& reason);  // io thread
  void report_lost();                    // dispatcher

  asio::io_context io_{1};
  asio::generic::stream_protocol::socket socket_;
  asio::steady_timer heartbeat_timer_;
  const std::string server_;
  const Timeout heartbeat_;
  FrameReader reader_;
  std::string chunk_;
  std::atomic<uint64_t> next_id_{1};

  std::mutex mutex_;
  std::map<uint64_t, Waiting*> calls_;
  std::map<uint64_t, std::function<void(const Json&)>> later_;
  std::map<uint64_t, std::shared_ptr<WatchCallback>> watches_;
  std::deque<Outgoing> outgoing_;
  size_t droppable_ = 0;  // droppable frames in outgoing_
  size_t outgoing_bytes_ = 0;
  bool writing_ = false;  // the io thread writes to the socket
  bool broken_ = false;   // the connection is gone
  bool lost_ = false;     // the connection is gone and on_lost has run
  bool closing_ = false;
  bool sends_nothing_ = false;
  std::string lost_reason_;
  std::condition_variable gone_;  // notified when broken_ is set
  std::optional<Abort> abort_;
  bool abort_reported_ = false;
  std::vector<std::function<void(const Abort&)>> abort_callbacks_;
  std::vector<std::function<void()>> lost_callbacks_;
  std::function<std::optional<Json>()> heartbeat_body_;
  Dispatcher dispatcher_;
  std::thread thread_;
};

}  // namespace convoy
