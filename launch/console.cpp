#include "launch/console.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "core/utf8.h"
#include "launch/progress.h"

namespace convoy {
namespace {

constexpr std::chrono::milliseconds fold_window{100};
constexpr std::chrono::seconds plain_interval{10};

// A console that cannot be written to is no reason to stop a training. False: errno tells why.
bool put(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

RankLogs::~RankLogs() {
  for (auto& [name, file] : files_)
    if (file.fd >= 0) close(file.fd);
}

RankLogs::File& RankLogs::file(const std::string& name) {
  auto [found, fresh] = files_.try_emplace(name);
  if (!fresh) return found->second;
  const std::string path = str(folder_, "/", name, ".log");
  // The owner of a log mostly makes the folder before its first line.
  try {
    if (mkdir(folder_.c_str(), 0755) == 0 || errno == EEXIST) found->second.fd = open_to_append(path).release();
  } catch (const Error& error) {
    if (say_) say_(str("no log of ", name, ": ", error.what()));  // no reason to stop a training
  }
  return found->second;
}

void RankLogs::failed(const std::string& name, File& file) {
  const int reason = errno;
  if (file.fd >= 0) close(std::exchange(file.fd, -1));
  if (say_)
    say_(str(folder_, "/", name, ".log: cannot be written: ", strerror(reason), "; its lines are only shown here",
             reason == EFBIG ? "; see `ulimit -f`" : ""));
}

void RankLogs::open(int rank) { file(str("rank", rank)); }
void RankLogs::write(int rank, const std::string& line) { write(str("rank", rank), line); }

void RankLogs::write(const std::string& name, const std::string& line) {
  File& file = this->file(name);
  if (file.fd < 0 || file.size > limit_) return;
  file.size += line.size() + 1;
  const std::string text =
      file.size > limit_
          ? str("convoy: this log is full (", human_bytes(static_cast<double>(limit_)), "); the rest is left out\n")
          : line + "\n";
  if (!put(file.fd, text)) failed(name, file);
}

Console::Console(EventLoop& loop, int ranks, bool draw, bool quiet)
    : loop_(loop),
      folder_(ranks, fold_window, [this](const std::string& line) { print_error_line(line); }),
      terminal_(draw && !quiet && isatty(STDOUT_FILENO) == 1),
      quiet_(quiet) {}

Console::~Console() {
  *alive_ = false;
  flush();
}

void Console::rank_line(const std::string& host, int rank, const std::string& line) {
  folder_.add(LineFolder::Clock::now(), host, rank, line);
  schedule_flush();
}

void Console::schedule_flush() {
  if (flushing_ || !folder_.holding()) return;
  flushing_ = true;
  loop_.after(fold_window, [this, alive = alive_] {
    if (!*alive) return;
    flushing_ = false;
    folder_.flush(LineFolder::Clock::now());
    schedule_flush();
  });
}

void Console::progress(const Json& record) {
  if (quiet_) return;
  progress_ = terminal_safe(progress_line(record));
  if (terminal_) return draw_progress();
  if (record.contains("text")) return;  // of what is told in lines of its own
  const auto now = std::chrono::steady_clock::now();
  if (now - last_plain_ < plain_interval) return;
  last_plain_ = now;
  print_line(progress_);
}

void Console::metrics(const Json& record) {
  if (!quiet_) print_line(metrics_line(record));
}

void Console::say(const std::string& text) {
  if (!quiet_) print("convoy: " + text);
}

void Console::print(const std::string& line) {
  folder_.flush_all();
  print_error_line(line);
}

void Console::result(const std::string& text) {
  flush();
  if (!quiet_) put(STDOUT_FILENO, terminal_safe(text));
}

void Console::flush() {
  folder_.flush_all();
  clear_progress();
  progress_.clear();
}

void Console::print_error_line(const std::string& line) {
  clear_progress();
  put(STDERR_FILENO, terminal_safe(line) + "\n");
  if (terminal_) draw_progress();
}

void Console::print_line(const std::string& line) {
  clear_progress();
  put(STDOUT_FILENO, terminal_safe(line) + "\n");
  if (terminal_) draw_progress();
}

void Console::clear_progress() {
  if (drawn_) put(STDOUT_FILENO, "\r\033[K");
  drawn_ = false;
}

void Console::draw_progress() {
  if (progress_.empty()) return;
  put(STDOUT_FILENO, "\r\033[K" + progress_.substr(0, terminal_width() - 1));
  drawn_ = true;
}

}  // namespace convoy
