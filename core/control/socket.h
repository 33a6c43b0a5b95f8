// TCP sockets of the control channel: numeric addresses only, non-blocking, close-on-exec from creation. asio creates
// and accepts sockets without CLOEXEC, and `convoy` forks.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/files/files.h"

namespace convoy {

// Frames of the control channel: four bytes of little-endian length, then one CBOR map. Values are CBOR byte strings,
// so they may contain any bytes.
//
// A client opens with {"convoy": frame_version, "job", "secret", "participant", "name"}. The server answers {"ok":
// true, "heartbeat", "abort"?} or {"ok": false, "error"}. Then the client sends {"op": …, "id"?, …} and the server
// {"id", "value"? | "values"? | "error"? | "missing"? | "abort"?}, {"watch", "key", "value"} or {"abort"}.

inline constexpr int frame_version = 1;
inline constexpr size_t hello_limit = 1024;              // largest frame before the connection has presented its secret
inline constexpr size_t frame_limit = size_t{64} << 20;  // size of a message to the server
inline constexpr size_t reply_limit = size_t{1} << 30;   // size of a message from the server

std::string encode_frame(const Json& message);  // header included
Json bytes_of(const std::string& value);
std::string text_of(const Json& bytes);  // throws Json::exception if it has no bytes

// Splits a stream into frames. Memory grows with the received bytes, not with the length that a header announces.
class FrameReader {
 public:
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }
  void feed(const char* data, size_t size) { buffer_.append(data, size); }
  // Returns the next complete frame, or nothing yet. Throws Error(rendezvous) for a frame that is too long or no CBOR
  // map; the connection is unusable afterwards.
  std::optional<Json> next();

 private:
  size_t limit_;
  std::string buffer_;
  size_t begin_ = 0;
};

using Deadline = std::chrono::steady_clock::time_point;

// Returns a listening socket, bound to one interface. Throws Error(rendezvous) with address and reason; wildcard
// addresses are refused.
Descriptor listen_on(const std::string& address, uint16_t port);
uint16_t port_of(int listener);
bool is_ipv6(const std::string& address);
// Returns the next connection, or an invalid descriptor with errno set.
Descriptor accept_from(int listener);

// Makes one attempt. For a temporary failure, such as no listening process yet, it returns an invalid descriptor and
// sets `problem`. Throws Error(rendezvous) for an address that can never work.
Descriptor connect_once(const std::string& address, uint16_t port, Deadline deadline, std::string& problem);
// Sets socket options: send small messages at once, detect dead hosts after `limit`.
void prepare_connection(int fd, std::chrono::milliseconds limit);

// Waits until fd is readable (or writable); returns false at the deadline.
bool wait_ready(int fd, bool writable, Deadline deadline);

}  // namespace convoy
