// A stream's buffer that makes what is written fit for a terminal (core/utf8.h): names and messages come from files, plugins and
// other programs.
#pragma once
#include <ostream>
#include <streambuf>
#include <string>

#include "core/utf8.h"

namespace convoy {

// Stands in front of the buffer of `stream` while it lives. Writes whole lines, and the rest when the stream is flushed.
class TerminalSafeStream : private std::streambuf {
 public:
  explicit TerminalSafeStream(std::ostream& stream) : stream_(stream), inner_(stream.rdbuf(this)) {}
  ~TerminalSafeStream() override {
    sync();
    stream_.rdbuf(inner_);
  }
  TerminalSafeStream(const TerminalSafeStream&) = delete;
  TerminalSafeStream& operator=(const TerminalSafeStream&) = delete;

 private:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char one = traits_type::to_char_type(c);
    return xsputn(&one, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    held_.append(text, static_cast<size_t>(size));
    const size_t end = held_.rfind('\n');
    if (end == std::string::npos) return size;
    const bool written = put(held_.substr(0, end + 1));
    held_.erase(0, end + 1);
    return written ? size : 0;
  }
  int sync() override {
    const bool written = put(held_);
    held_.clear();
    return inner_->pubsync() == 0 && written ? 0 : -1;
  }
  bool put(const std::string& text) {
    const std::string safe = terminal_safe(text);
    return inner_->sputn(safe.data(), static_cast<std::streamsize>(safe.size())) ==
           static_cast<std::streamsize>(safe.size());
  }

  std::ostream& stream_;
  std::streambuf* const inner_;
  std::string held_;
};

}  // namespace convoy
