#include "launch/lines.h"

#include <unistd.h>

#include <cerrno>

namespace convoy {
namespace {
constexpr size_t longest_line = 64 << 10;
constexpr int reads_at_once = 16;  // then others have their turn
}  // namespace

void LineCutter::add(const char* bytes, size_t size, const Sink& sink) {
  for (size_t i = 0; i < size; ++i) {
    const char c = bytes[i];
    if (c == '\n' || c == '\r') {
      // "\r\n" is one end, and progress bars begin with a return.
      if (!partial_.empty() || (c == '\n' && !after_return_)) sink(partial_);
      partial_.clear();
      after_return_ = c == '\r';
      continue;
    }
    after_return_ = false;
    partial_ += c;
    if (partial_.size() < longest_line) continue;
    sink(partial_);
    partial_.clear();
  }
}

void LineCutter::finish(const Sink& sink) {
  if (!partial_.empty()) sink(partial_);
  partial_.clear();
}

bool read_available(int fd, LineCutter& cutter, const LineCutter::Sink& sink) {
  char buffer[32 << 10];
  for (int i = 0; i < reads_at_once; ++i) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0) {
      cutter.add(buffer, static_cast<size_t>(got), sink);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      const bool more_later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      return more_later;
    }
  }
  return true;
}

}  // namespace convoy
