#include "backends/gloo_door.h"

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

#include "core/descriptor.h"
#include "core/error.h"

namespace convoy {
namespace {

constexpr size_t key_bytes = 32;       // of random_token()
constexpr size_t most_strangers = 64;  // each may be a peer whose key is on its way
constexpr char welcome = 1;            // the answer to the key

using Clock = std::chrono::steady_clock;

// The next definition of a function in link order: libc's, or that of another interposer.
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

// Family, address and port as bytes; "" for what is no address of TCP.
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

// Takes the same time wherever the two differ.
bool equal_keys(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool listens(int fd) {
  int on = 0;
  socklen_t size = sizeof on;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size) == 0 && on != 0;
}

}  // namespace

class GlooDoor::Listener {
 public:
  // In place of gloo's listening socket `fd`.
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
    stands_for_ = fd;
  }

  // As accept(2) on a non-blocking listener.
  int accept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    epoll_event events[16];
    const int count = set_.valid() && socket_.valid() ? epoll_wait(set_.get(), events, 16, 0) : 0;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == socket_.get()) {
        admit();
        continue;
      }
      for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++stranger)
        if (stranger->socket.get() == events[i].data.fd) {
          if (const int peer = hear(stranger); peer >= 0) return peer;
          break;
        }
    }
    errno = EAGAIN;
    return -1;
  }

  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    strangers_.clear();
    socket_ = Descriptor();
  }

  int problem() const { return problem_; }  // errno of take()
  void problem(int number) { problem_ = number; }
  int stands_for() const { return stands_for_; }  // -1: take() failed, or was never called
  const std::string& address() const { return address_; }
  const std::string& key() const { return key_; }

 private:
  struct Stranger {
    Descriptor socket;
    std::string said;
  };

  bool watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return real_epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  // Strangers that have sent something are heard at gloo's next call.
  void admit() {
    for (size_t i = 0; i < most_strangers; ++i) {
      Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        if (!full) return;
        if (!strangers_.empty()) {
          strangers_.pop_front();
          continue;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // gloo asks again at once
        return;
      }
      if (strangers_.size() >= most_strangers) strangers_.pop_front();
      if (!watch(socket.get())) continue;
      strangers_.push_back({std::move(socket), ""});
    }
  }

  // The descriptor of a peer that has shown the key, which leaves the strangers; -1 where it has not.
  int hear(std::list<Stranger>::iterator stranger) {
    char said[key_bytes];
    const int fd = stranger->socket.get();
    const ssize_t got = recv(fd, said, key_bytes - stranger->said.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    if (got > 0) stranger->said.append(said, static_cast<size_t>(got));
    if (got > 0 && stranger->said.size() < key_bytes) return -1;
    const bool peer = got > 0 && equal_keys(stranger->said, key_);
    real_epoll_ctl(set_.get(), EPOLL_CTL_DEL, fd, nullptr);
    Descriptor socket = std::move(stranger->socket);
    strangers_.erase(stranger);
    if (!peer) return -1;
    if (send(fd, &welcome, 1, MSG_NOSIGNAL) != 1) return -1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);  // as accept would give it
    return socket.release();
  }

  const std::string key_ = random_token();
  std::string address_;
  int stands_for_ = -1;
  int problem_ = 0;
  std::mutex mutex_;
  Descriptor set_;
  Descriptor socket_;
  std::list<Stranger> strangers_;  // the oldest first
};

namespace {

// The functions below look this up. It lives until the process ends: other threads may call them to the last.
struct Doors {
  std::mutex mutex;
  std::map<int, std::shared_ptr<GlooDoor::Listener>> by_descriptor;
  struct Key {
    std::string bytes;
    Clock::time_point end;  // of attempts to connect
  };
  std::multimap<std::string, Key> keys;  // by address of a peer's listener
};
Doors& doors() {
  static Doors* all = new Doors;
  return *all;
}
// Whose device this thread makes now.
thread_local const std::shared_ptr<GlooDoor::Listener>* in_the_making = nullptr;

std::shared_ptr<GlooDoor::Listener> door_at(int fd) {
  const std::lock_guard<std::mutex> lock(doors().mutex);
  const auto found = doors().by_descriptor.find(fd);
  return found == doors().by_descriptor.end() ? nullptr : found->second;
}

// `fd` is about to be watched by the thread of the device that this thread makes.
void guard(int fd) noexcept try {
  const std::shared_ptr<GlooDoor::Listener>& door = *in_the_making;
  if (door->stands_for() >= 0 || !listens(fd)) return;
  door->take(fd);
  if (door->stands_for() < 0) return;
  const std::lock_guard<std::mutex> lock(doors().mutex);
  doors().by_descriptor[fd] = door;
} catch (const std::bad_alloc&) {
  (*in_the_making)->problem(ENOMEM);
}

Doors::Key key_to(const sockaddr* address) {
  const std::lock_guard<std::mutex> lock(doors().mutex);
  if (address == nullptr || doors().keys.empty()) return {};
  const auto found = doors().keys.find(plain_address(address));
  return found == doors().keys.end() ? Doors::Key() : found->second;
}

// The door may drop a peer among many strangers before the key arrives, so this tries until it is let in. It blocks
// gloo's calling thread, until key.end at most. Only the rank that gloo chose of a pair connects, so no two wait for
// each other. Afterwards gloo asks the socket how it went.
int connect_with(const Doors::Key& key, int fd, const sockaddr* address, socklen_t size) {
  const auto ready = [&](short what) {
    pollfd wait{fd, what, 0};
    int found = -1;
    do {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(key.end - Clock::now()).count();
      found = poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
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
    real_connect(fd, &nobody, sizeof nobody);  // the socket is as new
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  errno = EINPROGRESS;
  return -1;
}

}  // namespace

GlooDoor::GlooDoor(const std::string& address) : listener_(std::make_shared<Listener>()) {
  in_the_making = &listener_;
  try {
    device_ = address.empty() ? c10d::ProcessGroupGloo::createDefaultDevice(/*lazyInit=*/false)
                              : c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/false);
  } catch (const std::exception& error) {
    in_the_making = nullptr;
    const char* full = std::strerror(EMFILE);
    if (std::strstr(error.what(), full) == nullptr) throw;
    throw Error(Failure::io, str("gloo cannot listen: ", full, "; raise `ulimit -n`"));
  }
  in_the_making = nullptr;
  if (const int problem = listener_->problem())
    throw Error(Failure::io, str("cannot guard gloo's listener: ", std::strerror(problem),
                                 problem == EMFILE ? "; raise `ulimit -n`" : ""));
  CONVOY_CHECK(listener_->stands_for() >= 0,
               "gloo's listener could not be guarded: epoll_ctl of this library is not the "
               "one that LibTorch calls");
}

GlooDoor::~GlooDoor() {
  close();
  device_.reset();  // its thread may still ask, so it goes first
  const std::lock_guard<std::mutex> lock(doors().mutex);
  for (auto door = doors().by_descriptor.begin(); door != doors().by_descriptor.end();)
    door = door->second == listener_ ? doors().by_descriptor.erase(door) : std::next(door);
}

std::string GlooDoor::invitation() const { return listener_->address() + listener_->key(); }
void GlooDoor::close() { listener_->close(); }

void GlooInvitations::add(const std::string& invitation) {
  if (invitation.size() <= key_bytes) return;
  const size_t split = invitation.size() - key_bytes;
  const std::lock_guard<std::mutex> lock(doors().mutex);
  doors().keys.emplace(invitation.substr(0, split), Doors::Key{invitation.substr(split), end_});
  addresses_.push_back(invitation.substr(0, split));
}

void GlooInvitations::forget() {
  const std::lock_guard<std::mutex> lock(doors().mutex);
  for (const std::string& address : addresses_)
    if (const auto found = doors().keys.find(address); found != doors().keys.end()) doors().keys.erase(found);
  addresses_.clear();
}

InvitingStore::InvitingStore(std::shared_ptr<Channel> channel, const std::string& prefix,
                             std::chrono::milliseconds timeout, std::string invitation,
                             std::shared_ptr<GlooInvitations> peers)
    : ChannelBackedStore(std::move(channel), prefix, timeout),
      invitation_(std::move(invitation)),
      peers_(std::move(peers)) {}

void InvitingStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  std::vector<uint8_t> whole = value;
  whole.insert(whole.end(), invitation_.begin(), invitation_.end());
  whole.push_back(static_cast<uint8_t>(invitation_.size()));
  ChannelBackedStore::set(key, whole);
}

std::vector<uint8_t> InvitingStore::get(const std::string& key) {
  std::vector<uint8_t> whole = ChannelBackedStore::get(key);
  if (whole.empty() || whole.back() >= whole.size())
    throw Error(Failure::rendezvous, str(key, ": carries no invitation"));
  const auto begin = whole.end() - 1 - whole.back();
  peers_->add(std::string(begin, whole.end() - 1));
  whole.erase(begin, whole.end());
  return whole;
}

}  // namespace convoy

// ---- in front of libc ----------------------------------------------------------------------------------------------

extern "C" {

__attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* size) {
  try {
    if (const auto door = convoy::door_at(fd)) return door->accept();
  } catch (const std::exception&) {  // gloo asks again
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
  if (operation == EPOLL_CTL_ADD && convoy::in_the_making != nullptr) convoy::guard(fd);
  return convoy::real_epoll_ctl(set, operation, fd, event);
}

}  // extern "C"
