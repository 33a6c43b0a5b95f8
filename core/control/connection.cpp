// Reads in chunks; writes all pending frames at once.

#include "core/control/connection.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <asio/io_context.hpp>
#include <asio/write.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <vector>

#include "core/base/log.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr size_t chunk_bytes = size_t{64} << 10;
// A participant with more pending bytes is treated as dead, so that it cannot exhaust memory.
constexpr size_t outgoing_limit = size_t{2} << 30;

// asio needs a protocol object but uses it only to open sockets, which convoy does itself.
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
    self->stalled = false;
    try {
      self->reader_.feed(self->chunk_.data(), size);
      while (!self->ended_ && !self->ending_) {
        const auto message = self->reader_.next();
        if (!message) break;
        self->handler_.on_message(*self, *message);
      }
    } catch (const std::exception& failure) {
      // Ignore errors of unknown senders; an error of a participant is a defect, so log it.
      if (self->admitted) log::error(str("control channel: connection of ", self->name, " closed: ", failure.what()));
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
    // Not immediately: the caller may be iterating over all connections.
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

// --- Dispatcher: a queue, a condition variable and a thread ---

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
      callback = nullptr;  // outside the lock: it may own the last reference to a channel
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
  std::deque<std::function<void()>> dropped;  // destroyed outside the lock: it may own the owner of this object
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
    if (inside) dropped.swap(state_->queue);
    state_->changed.notify_one();
  }
  if (inside)
    thread_.detach();
  else
    thread_.join();
}

}  // namespace convoy
