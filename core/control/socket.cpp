// Addresses without name look-ups, and socket flags that asio does not set.

#include "core/control/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/files/limits.h"

namespace convoy {

// Frames use nlohmann's CBOR. Its decoder checks lengths against the available bytes.

std::string encode_frame(const Json& message) {
  std::string frame(4, '\0');
  Json::to_cbor(message, frame);
  const auto length = static_cast<uint32_t>(frame.size() - 4);
  for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return frame;
}

Json bytes_of(const std::string& value) { return Json::binary({value.begin(), value.end()}); }

std::string text_of(const Json& bytes) {
  const auto& binary = bytes.get_binary();
  return {binary.begin(), binary.end()};
}

std::optional<Json> FrameReader::next() {
  if (buffer_.size() - begin_ < 4) return std::nullopt;
  size_t length = 0;
  for (int i = 0; i < 4; ++i) length |= static_cast<size_t>(static_cast<unsigned char>(buffer_[begin_ + i])) << (8 * i);
  if (length > limit_)
    throw Error(Failure::rendezvous, "a frame of ", length, " bytes where at most ", limit_, " are allowed");
  if (buffer_.size() - begin_ - 4 < length) return std::nullopt;
  const auto* data = reinterpret_cast<const unsigned char*>(buffer_.data()) + begin_ + 4;
  Json message;
  try {
    message = Json::from_cbor(data, data + length);
  } catch (const Json::exception& error) {
    throw Error(Failure::rendezvous, "a frame that is no CBOR: ", error.what());
  }
  if (!message.is_object()) throw Error(Failure::rendezvous, "a frame that is no CBOR map");
  begin_ += 4 + length;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    if (buffer_.capacity() > (size_t{1} << 20)) buffer_.shrink_to_fit();
  } else if (begin_ > (size_t{1} << 20)) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return message;
}

namespace {

using AddressInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressInfo resolve(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int problem = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (problem != 0) {
    throw Error(Failure::rendezvous, "control channel: '", address, "' is no numeric IPv4 or IPv6 address (",
                gai_strerror(problem), "); set launch.address to an address of this host");
  }
  return {found, &freeaddrinfo};
}

bool is_wildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

Descriptor open_socket(const addrinfo& info) {
  Descriptor fd(socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error = errno;
  if (!fd.valid())
    throw Error(is_out_of_descriptors(error) ? Failure::io : Failure::rendezvous,
                "control channel: socket: ", error_text(error));
  return fd;
}

void set_flag(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

// A connection to a free port of this host can connect to itself, if the kernel picks that port as its source.
bool met_itself(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0) return false;
  return here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

}  // namespace

Descriptor listen_on(const std::string& address, uint16_t port) {
  const AddressInfo info = resolve(address, port);
  auto fail = [&](const char* step) {
    return Error(Failure::rendezvous, "control channel: cannot listen on ", address, " port ", port, ": ", step, ": ",
                 std::strerror(errno),
                 errno == EADDRINUSE
                     ? "; another job may have it: launch.port: auto takes a free one; with --rendezvous, name another "
                       "port, or end the other node 0"
                 : errno == EADDRNOTAVAIL ? "; launch.address must be one of this host's"
                 : errno == EINVAL ? "; a link-local address needs its interface too: launch.address=fe80::1%eth0"
                                   : "");
  };
  if (is_wildcard(info->ai_addr)) {
    throw Error(Failure::rendezvous, "control channel: ", address,
                " means every interface; set launch.address to the address of one");
  }
  Descriptor fd = open_socket(*info);
  set_flag(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (info->ai_family == AF_INET6) set_flag(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0) throw fail("bind");
  if (listen(fd.get(), SOMAXCONN) != 0) throw fail("listen");
  return fd;
}

uint16_t port_of(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  CONVOY_CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0, std::strerror(errno));
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                            : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
}

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

Descriptor accept_from(int listener) {
  return Descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Descriptor connect_once(const std::string& address, uint16_t port, Deadline deadline, std::string& problem) {
  const AddressInfo info = resolve(address, port);
  Descriptor fd = open_socket(*info);
  const auto fail = [&problem](const char* reason) {
    problem = reason;
    return Descriptor();
  };
  if (connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return fail(std::strerror(errno));
    if (!wait_ready(fd.get(), true, deadline)) return fail("no answer");
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return fail(std::strerror(error));
  }
  return met_itself(fd.get()) ? fail("no process listens there") : std::move(fd);
}

void prepare_connection(int fd, std::chrono::milliseconds limit) {
  const int seconds = std::max<int>(1, static_cast<int>(limit.count() / 1000));
  set_flag(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_flag(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_flag(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set_flag(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 8));
  set_flag(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_flag(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
}

bool wait_ready(int fd, bool writable, Deadline deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{fd, static_cast<short>(writable ? POLLOUT : POLLIN), 0};
    const int64_t wait = std::clamp<int64_t>(left.count() + 1, 0, 3'600'000);
    const int ready = poll(&entry, 1, static_cast<int>(wait));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

}  // namespace convoy
