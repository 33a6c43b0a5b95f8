// Link: a client's connection to the control channel's server after the greeting. Moves frames, matches replies to
// requests, runs callbacks; what requests mean is client.cpp's.
//
// Threads: everything from any thread. Bytes move on the link's io thread, callbacks run on its dispatcher. Shared by
// the client and its threads, so that a client may be destroyed from inside a callback.
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
#include "core/control/dispatcher.h"
#include "core/control/frame.h"
#include "core/control/socket.h"

namespace convoy {

class Link : public std::enable_shared_from_this<Link> {
 public:
  using WatchCallback = std::function<void(const std::string& key, const std::string& value)>;

  Link(Descriptor fd, std::string server, Timeout heartbeat, std::optional<Abort> aborted, FrameReader reader);
  void start();
  // Says goodbye and waits, a second at most, until the server has read all that was sent; ends the threads. Calls
  // that still wait throw.
  void close();

  // Sends `request` (an "id" is added) and waits for its reply; after `timeout` asks the server to answer at once, and
  // returns that. `watch` gets what the server sends under this id from then on. CommError(peer_lost) when the server
  // is gone, CommError(rendezvous) when it does not answer.
  Json call(Json request, Timeout timeout, bool cancel, WatchCallback watch = nullptr);
  // Sends, and has `reply` called on the dispatcher's thread with what comes back, unless the server is gone first.
  void call_later(Json request, std::function<void(const Json&)> reply);
  void send(const Json& message, bool droppable);  // one-way; never blocks; no-op once lost

  void mute();  // nothing is sent from now on
  void abort(const Abort& reason);
  std::optional<Abort> aborted();
  void on_abort(std::function<void(const Abort&)> callback);
  void on_lost(std::function<void()> callback);
  void on_beat(std::function<std::optional<Json>()> tell);
  double cpu_seconds();
  bool on_callback_thread() const { return dispatcher_.on_own_thread(); }
  Timeout patience() const;  // how long a reply that needs nobody else may take

 private:
  struct Waiting {
    std::condition_variable changed;
    std::optional<Json> reply;
    bool inside = false;  // waits on the dispatcher's thread
  };
  struct Outgoing {
    std::string frame;
    bool droppable;
  };
  using Lock = std::unique_lock<std::mutex>;

  std::string encode(const Json& request) const;
  void throw_if_lost(const Waiting& waiting) const;
  void enqueue(Lock& lock, std::string frame, bool droppable);
  void flush();  // io thread
  void read();   // io thread
  void beat();   // io thread
  void received(Json message);
  void reason_received(const Abort& reason);
  void lose(const std::string& why);  // io thread
  void tell_lost();                   // dispatcher

  asio::io_context io_{1};
  asio::generic::stream_protocol::socket socket_;
  asio::steady_timer beat_timer_;
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
  size_t droppable_ = 0;  // of them
  size_t outgoing_bytes_ = 0;
  bool writing_ = false;  // the io thread owns the socket's sending side
  bool broken_ = false;   // the connection is gone
  bool lost_ = false;     // … and on_lost has run
  bool closing_ = false;
  bool mute_ = false;
  std::string why_;
  std::condition_variable gone_;  // broken_ was set
  std::optional<Abort> abort_;
  bool abort_told_ = false;
  std::vector<std::function<void(const Abort&)>> abort_callbacks_;
  std::vector<std::function<void()>> lost_callbacks_;
  std::function<std::optional<Json>()> tell_;  // what goes with heartbeats
  Dispatcher dispatcher_;
  std::thread thread_;
};

}  // namespace convoy
