// Frames of the control channel: four bytes of little-endian length, then one CBOR map. Bytes travel as CBOR byte
// strings, so a value may hold anything.
//
// A connection opens with {"convoy": frame_version, "job", "secret", "participant", "name"} and is answered
// {"ok": true, "heartbeat", "abort"?} or {"ok": false, "error"}. After that the client sends {"op": …, "id"?, …} and the
// server {"id", "value"? | "values"? | "error"? | "missing"? | "abort"?}, {"watch", "key", "value"} or {"abort"}.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/options.h"

namespace convoy {

inline constexpr int frame_version = 1;
inline constexpr size_t hello_limit = 1024;              // bytes of a frame before a connection has shown its secret
inline constexpr size_t frame_limit = size_t{64} << 20;  // of one message to the server
inline constexpr size_t reply_limit = size_t{1} << 30;   // of one message from it (all votes of an agreement)

std::string encode_frame(const Json& message);  // header included
Json bytes_of(const std::string& value);
std::string text_of(const Json& bytes);  // throws Json::exception when it holds no bytes

// Cuts a stream into frames. Memory grows with what has arrived, not with what a header promises.
class FrameReader {
 public:
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }
  void feed(const char* data, size_t size) { buffer_.append(data, size); }
  // The next whole frame, or nothing yet. Error(rendezvous) for a frame beyond the limit or that is no CBOR map; the
  // connection is then of no use any more.
  std::optional<Json> next();

 private:
  size_t limit_;
  std::string buffer_;
  size_t begin_ = 0;
};

}  // namespace convoy
