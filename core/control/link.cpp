// One mutex guards all state. It is not held while a callback runs or a thread waits for the network.
#include "core/control/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <asio/post.hpp>
#include <asio/write.hpp>

#include "core/control/store.h"

namespace convoy {
namespace {

using namespace std::chrono_literals;
// Above this limit the oldest progress posts are dropped. Log lines and aborts stay: the server either reads them or
// counts as lost.
constexpr size_t outgoing_soft_limit = size_t{8} << 20;
constexpr size_t outgoing_soft_count = 10000;
constexpr auto goodbye_time = 1s;

}  // namespace

Link::Link(Descriptor fd, std::string server, Timeout heartbeat, std::optional<Abort> aborted, FrameReader reader)
    : socket_(io_),
      heartbeat_timer_(io_),
      server_(std::move(server)),
      heartbeat_(heartbeat),
      reader_(std::move(reader)),
      abort_(std::move(aborted)),
      abort_reported_(abort_.has_value()),
      dispatcher_("convoy-events") {
  socket_.assign(asio::generic::stream_protocol(AF_INET, IPPROTO_TCP), fd.get());
  fd.release();
}

void Link::start() {
  chunk_.resize(size_t{64} << 10);
  // Handle frames that arrived with the greeting; no other thread knows this link yet.
  while (auto message = reader_.next()) received(std::move(*message));
  read();
  send_heartbeat();
  thread_ = start_thread("convoy-channel", [self = shared_from_this()] { self->io_.run(); });
}

void Link::close() {
  {
    Lock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    enqueue(lock, encode_frame(Json{{"op", "bye"}}), false);
    gone_.wait_for(lock, goodbye_time, [&] { return broken_; });
    lost_reason_ = "this client was closed";
    broken_ = lost_ = true;
    for (auto& [id, waiting] : calls_) waiting->changed.notify_all();
    abort_callbacks_.clear();
    lost_callbacks_.clear();
    later_.clear();
    heartbeat_body_ = nullptr;
  }
  io_.stop();
  if (thread_.joinable()) thread_.join();
  asio::error_code ignored;
  socket_.close(ignored);
  dispatcher_.close();
}

Timeout Link::reply_limit() const { return std::max<Timeout>(heartbeat_, 30s); }
Timeout Link::cancel_limit() const { return std::clamp<Timeout>(heartbeat_, 5s, 30s); }

std::string Link::encode(const Json& request) const {
  std::string frame = encode_frame(request);
  if (frame.size() > frame_limit) {
    throw Error(Failure::internal, "control channel: a value of ", human_bytes(frame.size()), ", at most ",
                human_bytes(frame_limit), " fit");
  }
  return frame;
}

Json Link::call(Json request, Timeout timeout, bool cancel, WatchCallback watch) {
  Waiting waiting;
  waiting.inside = dispatcher_.on_own_thread();
  const uint64_t id = next_id_++;
  request["id"] = id;
  std::string frame = encode(request);  // may be large, so before the lock
  Lock lock(mutex_);
  throw_if_lost(waiting);
  calls_[id] = &waiting;
  if (watch) watches_[id] = std::make_shared<WatchCallback>(std::move(watch));
  enqueue(lock, std::move(frame), false);
  auto over = [&] { return waiting.reply || lost_ || (waiting.inside && broken_); };
  const bool replied = waiting.changed.wait_until(lock, deadline_after(timeout), over);
  if (!replied && cancel) {
    enqueue(lock, encode_frame(Json{{"op", "cancel"}, {"id", id}}), false);
    waiting.changed.wait_until(lock, deadline_after(cancel_limit()), over);
  }
  calls_.erase(id);
  if (waiting.reply) return std::move(*waiting.reply);
  throw_if_lost(waiting);
  const Timeout waited = timeout + (cancel ? cancel_limit() : Timeout(0));
  throw CommError(Failure::rendezvous, -1, "control channel: ", server_, " did not answer '",
                  request.at("op").get<std::string>(), "' within ", human_seconds(waited),
                  "; is the `convoy` process there halted?");
}

void Link::throw_if_lost(const Waiting& waiting) const {
  if (lost_ || (waiting.inside && broken_))
    throw CommError(Failure::peer_lost, -1, "control channel: ", server_, " is gone (", lost_reason_, ")");
}

void Link::call_later(Json request, std::function<void(const Json&)> reply) {
  const uint64_t id = next_id_++;
  request["id"] = id;
  std::string frame = encode(request);
  Lock lock(mutex_);
  if (broken_) return;
  later_[id] = std::move(reply);
  enqueue(lock, std::move(frame), false);
}

void Link::on_heartbeat(std::function<std::optional<Json>()> body) {
  Lock lock(mutex_);
  heartbeat_body_ = std::move(body);
}

double Link::cpu_seconds() { return cpu_seconds_of(thread_) + dispatcher_.cpu_seconds(); }

void Link::send(const Json& message, bool droppable) {
  std::string frame = encode_frame(message);
  if (frame.size() > frame_limit) return;
  Lock lock(mutex_);
  enqueue(lock, std::move(frame), droppable);
}

void Link::enqueue(Lock&, std::string frame, bool droppable) {
  if (broken_ || sends_nothing_) return;
  if (outgoing_.empty() && !writing_) {
    // Send from this thread: waking another one costs time if the rank has only one core.
    const ssize_t sent = ::send(socket_.native_handle(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(frame.size())) return;
    if (sent > 0) {
      frame.erase(0, static_cast<size_t>(sent));
      droppable = false;  // the server has read its beginning
    }
  }
  outgoing_bytes_ += frame.size();
  droppable_ += droppable;
  outgoing_.push_back({std::move(frame), droppable});
  while (droppable_ > 0 && (outgoing_bytes_ > outgoing_soft_limit || outgoing_.size() > outgoing_soft_count)) {
    const auto oldest = std::find_if(outgoing_.begin(), outgoing_.end(), [](const Outgoing& o) { return o.droppable; });
    outgoing_bytes_ -= oldest->frame.size();
    --droppable_;
    outgoing_.erase(oldest);
  }
  if (writing_) return;
  writing_ = true;
  asio::post(io_, [this] { flush(); });
}

void Link::flush() {
  auto batch = std::make_shared<std::deque<Outgoing>>();
  {
    Lock lock(mutex_);
    if (outgoing_.empty() || broken_) {
      writing_ = false;
      return;
    }
    batch->swap(outgoing_);
    outgoing_bytes_ = droppable_ = 0;
  }
  std::vector<asio::const_buffer> buffers;
  for (const Outgoing& item : *batch) buffers.emplace_back(item.frame.data(), item.frame.size());
  asio::async_write(socket_, buffers, [this, batch](const asio::error_code& error, size_t) {
    if (error) return lose(error.message());
    flush();
  });
}

void Link::read() {
  socket_.async_read_some(asio::buffer(chunk_.data(), chunk_.size()),
                          [this](const asio::error_code& error, size_t size) {
                            // A reset means that the peer closed with unread bytes; treat it as a normal close.
                            if (error == asio::error::eof || error == asio::error::connection_reset)
                              return lose("it closed the connection");
                            if (error) return lose(error.message());
                            try {
                              reader_.feed(chunk_.data(), size);
                              while (auto message = reader_.next()) received(std::move(*message));
                            } catch (const std::exception& failure) {
                              return lose(failure.what());
                            }
                            read();
                          });
}

void Link::send_heartbeat() {
  {
    Lock lock(mutex_);
    const auto body_of = heartbeat_body_;
    lock.unlock();
    std::optional<Json> body(std::in_place);
    if (body_of) body = body_of();
    lock.lock();
    Json message{{"op", "heartbeat"}};
    if (body && !body->is_null()) message["content"] = *body;
    if (body) enqueue(lock, encode_frame(message), true);
  }
  heartbeat_timer_.expires_after(std::max<Timeout>(heartbeat_ / 4, 1ms));
  heartbeat_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) send_heartbeat();
  });
}

void Link::received(Json message) {
  if (message.contains("id")) {
    Lock lock(mutex_);
    const auto id = message.at("id").get<uint64_t>();
    if (const auto later = later_.find(id); later != later_.end()) {
      dispatcher_.post([reply = std::move(later->second), message = std::move(message)] { reply(message); });
      later_.erase(later);
      return;
    }
    const auto found = calls_.find(id);
    if (found == calls_.end()) return;  // its caller has given up
    found->second->reply = std::move(message);
    found->second->changed.notify_all();
  } else if (message.contains("watch")) {
    std::shared_ptr<WatchCallback> callback;
    {
      Lock lock(mutex_);
      callback = watches_.at(message.at("watch").get<uint64_t>());
    }
    dispatcher_.post([callback, key = message.at("key").get<std::string>(), value = text_of(message.at("value"))] {
      (*callback)(key, value);
    });
  } else if (message.contains("abort")) {
    reason_received(abort_from_json(message.at("abort")));
  }
}

void Link::reason_received(const Abort& reason) {
  Lock lock(mutex_);
  abort_ = reason;
  if (abort_reported_) return;
  abort_reported_ = true;
  for (auto& callback : abort_callbacks_)
    dispatcher_.post([callback = std::move(callback), reason] { callback(reason); });
  abort_callbacks_.clear();
}

void Link::stop_sending() {
  Lock lock(mutex_);
  sends_nothing_ = true;
}

void Link::abort(const Abort& reason) {
  send(Json{{"op", "abort"}, {"abort", to_json(reason)}}, false);
  Lock lock(mutex_);
  // Keep this reason until the server reports the first one.
  if (!abort_ || (abort_->kind == Failure::peer_lost && reason.kind != Failure::peer_lost)) abort_ = reason;
  if (!broken_ || abort_reported_) return;
  lock.unlock();
  reason_received(*aborted());
}

std::optional<Abort> Link::aborted() {
  Lock lock(mutex_);
  return abort_;
}

void Link::on_abort(std::function<void(const Abort&)> callback) {
  Lock lock(mutex_);
  if (abort_reported_)
    dispatcher_.post([callback = std::move(callback), reason = *abort_] { callback(reason); });
  else
    abort_callbacks_.push_back(std::move(callback));
}

void Link::on_lost(std::function<void()> callback) {
  Lock lock(mutex_);
  if (lost_)
    dispatcher_.post(std::move(callback));
  else
    lost_callbacks_.push_back(std::move(callback));
}

void Link::lose(const std::string& reason) {
  Lock lock(mutex_);
  if (broken_) return;
  broken_ = true;
  writing_ = false;
  lost_reason_ = reason;
  gone_.notify_all();
  for (auto& [id, waiting] : calls_) waiting->changed.notify_all();
  asio::error_code ignored;
  heartbeat_timer_.cancel();
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  // Callbacks may drop the last other reference to this link.
  if (!closing_) dispatcher_.post([self = shared_from_this()] { self->report_lost(); });
}

void Link::report_lost() {
  Lock lock(mutex_);
  while (!lost_callbacks_.empty()) {
    const auto callbacks = std::move(lost_callbacks_);
    lost_callbacks_.clear();
    lock.unlock();
    for (const auto& callback : callbacks) callback();
    lock.lock();
  }
  lost_ = true;
  for (auto& [id, waiting] : calls_) waiting->changed.notify_all();
}

}  // namespace convoy
