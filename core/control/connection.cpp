// Reading in chunks, writing what has gathered.
#include "core/control/connection.h"

#include <asio/io_context.hpp>
#include <asio/write.hpp>
#include <vector>

#include "core/log.h"
#include "core/text.h"

namespace convoy {
namespace {

constexpr size_t chunk_bytes = size_t{64} << 10;
// A participant that reads nothing for so long is taken for dead rather than let to fill our memory.
constexpr size_t outgoing_limit = size_t{2} << 30;

// asio asks for a protocol, and only uses it to open sockets, which we do ourselves.
asio::generic::stream_protocol any_protocol() { return {AF_INET, IPPROTO_TCP}; }

}  // namespace

Connection::Connection(asio::io_context& io, Descriptor fd, uint64_t id, const Handler& handler)
    : socket_(io), id_(id), handler_(handler) {
  socket_.assign(any_protocol(), fd.get());
  fd.release();
}

void Connection::start() {
  chunk_.resize(hello_limit);
  read();
}

void Connection::admit() {
  admitted = true;
  reader_.set_limit(frame_limit);
  chunk_.resize(chunk_bytes);
}

void Connection::read() {
  socket_.async_read_some(asio::buffer(chunk_.data(), chunk_.size()), [self = shared_from_this()](
                                                                          const asio::error_code& error, size_t size) {
    if (self->ended_) return;
    if (error) return self->end();
    self->last_heard_ = Clock::now();
    self->silent = false;
    try {
      self->reader_.feed(self->chunk_.data(), size);
      while (!self->ended_ && !self->ending_) {
        const auto message = self->reader_.next();
        if (!message) break;
        self->handler_.on_message(*self, *message);
      }
    } catch (const std::exception& failure) {
      // What strangers send to the port is nobody's business; what a participant sends is a defect worth a line.
      if (self->admitted) {
        log::error(str("control channel: connection of ", self->name, " closed: ", failure.what()));
      }
      return self->end();
    }
    if (!self->ended_) self->read();
  });
}

void Connection::send(const Json& message) { send(std::make_shared<const std::string>(encode_frame(message))); }

void Connection::send(std::shared_ptr<const std::string> frame) {
  if (ended_ || ending_) return;
  outgoing_bytes_ += frame->size();
  outgoing_.push_back(std::move(frame));
  if (outgoing_bytes_ > outgoing_limit) {
    log::error(str("control channel: ", name, " reads nothing; its connection is closed"));
    // Not at once: the caller may be walking over all connections.
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->end(); });
    return;
  }
  if (!writing_) write();
}

void Connection::write() {
  if (outgoing_.empty()) {
    writing_ = false;
    if (ending_) end();
    return;
  }
  writing_ = true;
  auto batch = std::make_shared<std::deque<std::shared_ptr<const std::string>>>(std::move(outgoing_));
  outgoing_.clear();
  std::vector<asio::const_buffer> buffers;
  for (const auto& frame : *batch) buffers.emplace_back(frame->data(), frame->size());
  asio::async_write(socket_, buffers, [self = shared_from_this(), batch](const asio::error_code& error, size_t size) {
    if (self->ended_) return;
    if (error) return self->end();
    self->outgoing_bytes_ -= size;
    self->write();
  });
}

void Connection::end_when_sent() {
  ending_ = true;
  if (!writing_) end();
}

void Connection::end() {
  if (ended_) return;
  ended_ = true;
  const auto self = shared_from_this();  // on_end drops the server's reference
  asio::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  socket_.close(ignored);
  handler_.on_end(*this);
}

}  // namespace convoy
