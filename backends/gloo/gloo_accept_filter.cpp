#include "backends/gloo/gloo_accept_filter.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "core/files/files.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr size_t key_bytes = 32;        // length of random_token()
constexpr size_t most_unverified = 64;  // each may be a peer that has not sent its key yet
constexpr char welcome = 1;             // the answer to the key

using Clock = std::chrono::steady_clock;

// Returns the next definition of a function in link order: libc's, or that of another interposer.
template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
int real_accept(int fd, sockaddr* address, socklen_t* size) {
  static const auto function = next<int (*)(int, sockaddr*, socklen_t*)>("accept");
  return function(fd, address, size);
}
int real_connect(int fd, const sockaddr* address, socklen_t size) {
  static const auto function = next<int (*)(int, const sockaddr*, socklen_t)>("connect");
  return function(fd, address, size);
}
int real_epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  static const auto function = next<int (*)(int, int, int, epoll_event*)>("epoll_ctl");
  return function(set, operation, fd, event);
}

// Returns family, address and port as bytes; "" if it is not a TCP address.
std::string plain_address(const sockaddr* address) {
  const auto bytes = [](const void* from, size_t size) { return std::string(static_cast<const char*>(from), size); };
  if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    return "4" + bytes(&four->sin_addr, sizeof four->sin_addr) + bytes(&four->sin_port, sizeof four->sin_port);
  }
  if (address->sa_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
    return "6" + bytes(&six->sin6_addr, sizeof six->sin6_addr) + bytes(&six->sin6_port, sizeof six->sin6_port);
  }
  return "";
}

bool listens(int fd) {
  int on = 0;
  socklen_t size = sizeof on;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size) == 0 && on != 0;
}

}  // namespace

class GlooAcceptFilter::Listener {
 public:
  // Replaces gloo's listening socket `fd` by the epoll set.
  void take(int fd) {
    socket_ = Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    set_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    const bool made = socket_.valid() && set_.valid() && watch(socket_.get()) &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0 &&
                      dup3(set_.get(), fd, O_CLOEXEC) == fd;
    problem_ = made ? 0 : errno;
    if (!made) return;
    address_ = plain_address(reinterpret_cast<const sockaddr*>(&bound));
    replaced_fd_ = fd;
  }

  // Behaves like accept(2) on a non-blocking listener.
  int accept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    epoll_event events[16];
    const int count = set_.valid() && socket_.valid() ? epoll_wait(set_.get(), events, 16, 0) : 0;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == socket_.get()) {
        accept_new();
        continue;
      }
      for (auto connection = unverified_.begin(); connection != unverified_.end(); ++connection)
        if (connection->socket.get() == events[i].data.fd) {
          if (const int peer = verify(connection); peer >= 0) return peer;
          break;
        }
    }
    errno = EAGAIN;
    return -1;
  }

  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    unverified_.clear();
    socket_ = Descriptor();
  }

  int problem() const { return problem_; }  // errno of take()
  void problem(int number) { problem_ = number; }
  int replaced_fd() const { return replaced_fd_; }  // -1: take() failed, or was not called
  const std::string& address() const { return address_; }
  const std::string& key() const { return key_; }

 private:
  struct UnverifiedConnection {
    Descriptor socket;
    std::string received;
  };

  bool watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return real_epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  // Accepts new connections. Their keys are read at gloo's next call.
  void accept_new() {
    for (size_t i = 0; i < most_unverified; ++i) {
      Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        if (!full) return;
        if (!unverified_.empty()) {
          unverified_.pop_front();
          continue;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // gloo retries at once
        return;
      }
      if (unverified_.size() >= most_unverified) unverified_.pop_front();
      if (!watch(socket.get())) continue;
      unverified_.push_back({std::move(socket), ""});
    }
  }

  // Reads a connection's key. Returns the descriptor if the key is complete and correct, else -1.
  int verify(std::list<UnverifiedConnection>::iterator connection) {
    char received[key_bytes];
    const int fd = connection->socket.get();
    const ssize_t got = recv(fd, received, key_bytes - connection->received.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    if (got > 0) connection->received.append(received, size_t(got));
    if (got > 0 && connection->received.size() < key_bytes) return -1;
    const bool peer = got > 0 && equal_secrets(connection->received, key_);
    real_epoll_ctl(set_.get(), EPOLL_CTL_DEL, fd, nullptr);
    Descriptor socket = std::move(connection->socket);
    unverified_.erase(connection);
    if (!peer) return -1;
    if (send(fd, &welcome, 1, MSG_NOSIGNAL) != 1) return -1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);  // accept(2) returns blocking sockets
    return socket.release();
  }

  const std::string key_ = random_token();
  std::string address_;
  int replaced_fd_ = -1;
  int problem_ = 0;
  std::mutex mutex_;
  Descriptor set_;
  Descriptor socket_;
  std::list<UnverifiedConnection> unverified_;  // oldest first
};

namespace {

// Process-wide table for the interposed functions. It is never destroyed: other threads may call them until the end.
struct FilterTable {
  std::mutex mutex;
  std::map<int, std::shared_ptr<GlooAcceptFilter::Listener>> by_descriptor;
  struct Key {
    std::string bytes;
    Clock::time_point end;  // connection attempts end at this time
  };
  std::multimap<std::string, Key> keys;  // by address of a peer's listener
};
FilterTable& filter_table() {
  static FilterTable* all = new FilterTable;
  return *all;
}
// The listener of the device that this thread creates at the moment.
thread_local const std::shared_ptr<GlooAcceptFilter::Listener>* listener_in_construction = nullptr;

std::shared_ptr<GlooAcceptFilter::Listener> listener_at(int fd) {
  const std::lock_guard<std::mutex> lock(filter_table().mutex);
  const auto found = filter_table().by_descriptor.find(fd);
  return found == filter_table().by_descriptor.end() ? nullptr : found->second;
}

// Filters `fd` if it is the listener of the device that this thread creates. The device's thread will watch it.
void filter_listener(int fd) noexcept try {
  const std::shared_ptr<GlooAcceptFilter::Listener>& listener = *listener_in_construction;
  if (listener->replaced_fd() >= 0 || !listens(fd)) return;
  listener->take(fd);
  if (listener->replaced_fd() < 0) return;
  const std::lock_guard<std::mutex> lock(filter_table().mutex);
  filter_table().by_descriptor[fd] = listener;
} catch (const std::bad_alloc&) {
  (*listener_in_construction)->problem(ENOMEM);
}

FilterTable::Key key_to(const sockaddr* address) {
  const std::lock_guard<std::mutex> lock(filter_table().mutex);
  if (address == nullptr || filter_table().keys.empty()) return {};
  const auto found = filter_table().keys.find(plain_address(address));
  return found == filter_table().keys.end() ? FilterTable::Key() : found->second;
}

// The peer may drop this connection before its key arrives, so this retries until the peer accepts it. It blocks
// gloo's calling thread, at most until key.end. Only one rank of a pair connects, as gloo decides, so two ranks never
// wait for each other. Afterwards gloo reads the result from the socket.
int connect_with(const FilterTable::Key& key, int fd, const sockaddr* address, socklen_t size) {
  const auto ready = [&](short what) {
    pollfd wait{fd, what, 0};
    int found = -1;
    do {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(key.end - Clock::now()).count();
      found = poll(&wait, 1, int(std::clamp<int64_t>(left, 0, 1000)));
    } while ((found < 0 && errno == EINTR) || (found == 0 && Clock::now() < key.end));
    return found == 1 && (wait.revents & POLLERR) == 0;
  };
  while (true) {
    if (real_connect(fd, address, size) != 0 && errno != EINPROGRESS && errno != EINTR) return -1;
    const bool connected = ready(POLLOUT);
    char answer = 0;
    if (connected && send(fd, key.bytes.data(), key.bytes.size(), MSG_NOSIGNAL) == ssize_t(key.bytes.size()) &&
        ready(POLLIN) && recv(fd, &answer, 1, 0) == 1)
      break;
    if (Clock::now() >= key.end) {
      shutdown(fd, SHUT_RDWR);
      errno = ETIMEDOUT;
      return -1;
    }
    if (!connected) break;
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    real_connect(fd, &nobody, sizeof nobody);  // disconnects, so that the socket can connect again
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  errno = EINPROGRESS;
  return -1;
}

}  // namespace

GlooAcceptFilter::GlooAcceptFilter(const std::string& address) : listener_(std::make_shared<Listener>()) {
  listener_in_construction = &listener_;
  try {
    device_ = address.empty() ? c10d::ProcessGroupGloo::createDefaultDevice(/*lazyInit=*/false)
                              : c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/false);
  } catch (const std::exception& error) {
    listener_in_construction = nullptr;
    const char* full = std::strerror(EMFILE);
    if (std::strstr(error.what(), full) == nullptr) throw;
    throw Error(Failure::io, "gloo cannot listen: ", error_text(EMFILE));
  }
  listener_in_construction = nullptr;
  if (const int problem = listener_->problem())
    throw Error(Failure::io, "cannot guard gloo's listener: ", error_text(problem));
  CONVOY_CHECK(listener_->replaced_fd() >= 0,
               "gloo's listener could not be guarded: epoll_ctl of this library is not the "
               "one that LibTorch calls");
}

GlooAcceptFilter::~GlooAcceptFilter() {
  close();
  device_.reset();  // first, because its thread may still use the listener
  const std::lock_guard<std::mutex> lock(filter_table().mutex);
  for (auto listener = filter_table().by_descriptor.begin(); listener != filter_table().by_descriptor.end();)
    listener = listener->second == listener_ ? filter_table().by_descriptor.erase(listener) : std::next(listener);
}

std::string GlooAcceptFilter::connection_key() const { return listener_->address() + listener_->key(); }
void GlooAcceptFilter::close() { listener_->close(); }

void GlooConnectionKeys::add(const std::string& connection_key) {
  if (connection_key.size() <= key_bytes) return;
  const size_t split = connection_key.size() - key_bytes;
  const std::lock_guard<std::mutex> lock(filter_table().mutex);
  filter_table().keys.emplace(connection_key.substr(0, split), FilterTable::Key{connection_key.substr(split), end_});
  addresses_.push_back(connection_key.substr(0, split));
}

void GlooConnectionKeys::forget() {
  const std::lock_guard<std::mutex> lock(filter_table().mutex);
  for (const std::string& address : addresses_)
    if (const auto found = filter_table().keys.find(address); found != filter_table().keys.end())
      filter_table().keys.erase(found);
  addresses_.clear();
}

KeyedStore::KeyedStore(std::shared_ptr<Channel> channel, const std::string& prefix, std::chrono::milliseconds timeout,
                       std::string connection_key, std::shared_ptr<GlooConnectionKeys> peers)
    : ChannelBackedStore(std::move(channel), prefix, timeout),
      connection_key_(std::move(connection_key)),
      peers_(std::move(peers)) {}

void KeyedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  std::vector<uint8_t> whole = value;
  whole.insert(whole.end(), connection_key_.begin(), connection_key_.end());
  whole.push_back(static_cast<uint8_t>(connection_key_.size()));
  ChannelBackedStore::set(key, whole);
}

std::vector<uint8_t> KeyedStore::get(const std::string& key) {
  std::vector<uint8_t> whole = ChannelBackedStore::get(key);
  if (whole.empty() || whole.back() >= whole.size())
    throw Error(Failure::rendezvous, key, ": carries no connection key");
  const auto begin = whole.end() - 1 - whole.back();
  peers_->add(std::string(begin, whole.end() - 1));
  whole.erase(begin, whole.end());
  return whole;
}

}  // namespace convoy

// --- Interposed functions of libc -----------------------------------------------------------------------------------

extern "C" {

__attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* size) {
  try {
    if (const auto listener = convoy::listener_at(fd)) return listener->accept();
  } catch (const std::exception&) {  // gloo retries
    errno = EAGAIN;
    return -1;
  }
  return convoy::real_accept(fd, address, size);
}

__attribute__((visibility("default"))) int connect(int fd, const sockaddr* address, socklen_t size) {
  try {
    const auto key = convoy::key_to(address);
    if (!key.bytes.empty()) return convoy::connect_with(key, fd, address, size);
  } catch (const std::exception&) {
    errno = ENOMEM;
    return -1;
  }
  return convoy::real_connect(fd, address, size);
}

__attribute__((visibility("default"))) int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && convoy::listener_in_construction != nullptr) convoy::filter_listener(fd);
  return convoy::real_epoll_ctl(set, operation, fd, event);
}

}  // extern "C"
