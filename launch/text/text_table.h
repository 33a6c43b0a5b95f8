// Tables for people: every column is as wide as its widest cell; two blanks separate columns.
#pragma once
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <streambuf>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/text.h"

namespace convoy {

// `lines`: cells by line, heading first, all lines of equal length. `right`: columns aligned to the right, such as
// numbers. Every line ends with a newline, without trailing blanks.
std::string text_table(const std::vector<std::vector<std::string>>& lines, const std::vector<size_t>& right = {});

// `value` as printf writes it, with one conversion such as "%.4g".
std::string formatted(const char* format, double value);

// Pretty JSON in ASCII for a command's --json: the terminal-safe stream must not change a character of it.
std::string json_text(const Json& json);

// First and last of many names, with their number: "node0 … node127 (128)".
std::string names_text(const std::vector<std::string>& names);

// --- Terminal-safe output ---

// Replaces the buffer of `stream` during its lifetime and makes output terminal-safe (core/base/text.h): names and
// messages come from files, plugins and other programs. Writes whole lines, and the rest when the stream is flushed.
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
    buffered_.append(text, static_cast<size_t>(size));
    const size_t end = buffered_.rfind('\n');
    if (end == std::string::npos) return size;
    const bool written = put(buffered_.substr(0, end + 1));
    buffered_.erase(0, end + 1);
    return written ? size : 0;
  }
  int sync() override {
    const bool written = put(buffered_);
    buffered_.clear();
    return inner_->pubsync() == 0 && written ? 0 : -1;
  }
  bool put(const std::string& text) {
    const std::string safe = terminal_safe(text);
    return inner_->sputn(safe.data(), static_cast<std::streamsize>(safe.size())) ==
           static_cast<std::streamsize>(safe.size());
  }

  std::ostream& stream_;
  std::streambuf* const inner_;
  std::string buffered_;
};

// --- Folded lines ---

// Folds equal lines of several ranks into one: "host:0-3 | line". Pure: the caller passes the time.

class LineMerger {
 public:
  using Clock = std::chrono::steady_clock;
  // `ranks`: number of ranks that may print the same line. A line waits until all ranks have, or for `window`.
  LineMerger(int ranks, std::chrono::milliseconds window, std::function<void(const std::string&)> print);

  void add(Clock::time_point now, const std::string& host, int rank, const std::string& line);
  void flush(Clock::time_point now);  // prints lines that have waited long enough
  void flush_all();
  // Drops the waiting lines for which `is_dropped` returns true; it receives a line without its time.
  void drop(const std::function<bool(const std::string&)>& is_dropped);
  bool has_pending() const { return !pending_.empty(); }

 private:
  struct Pending {
    std::string line, key;
    Clock::time_point since;
    std::map<std::string, std::set<int>> ranks;  // by host
    int count = 0;
  };
  void print_front();

  int ranks_;
  std::chrono::milliseconds window_;
  std::function<void(const std::string&)> print_;
  std::deque<Pending> pending_;
};

// "0-3,5"
std::string ranges(const std::set<int>& numbers);
// `line` without the date and time that convoy's log puts first.
std::string without_time(const std::string& line);

// Number of UTF-8 characters; convoy prints no wide ones.
size_t width_of(const std::string& cell);

}  // namespace convoy
