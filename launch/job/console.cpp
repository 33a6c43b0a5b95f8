#include "launch/job/console.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"
#include "launch/diagnose/reports.h"

namespace convoy {
namespace {

// "loss 0.2213, hr@10 0.6120"; values that are no numbers are already text.
std::string metrics_text(const Json& metrics) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : metrics.items())
    texts.push_back(name + " " +
                    (value.is_number()   ? formatted("%.4g", value.get<double>())
                     : value.is_string() ? value.get<std::string>()
                                         : value.dump()));
  return join(texts, ", ");
}

std::string of(const Json& record, const char* done, const char* all) {
  const double total = number_in(record, all, 0);
  return formatted("%.0f", number_in(record, done, 0)) + (total > 0 ? formatted("/%.0f", total) : "");
}

}  // namespace

std::string short_number(double value) {
  const double size = std::fabs(value);
  if (size >= 1e6) return formatted("%.2fM", value / 1e6);
  if (size >= 1e3) return formatted("%.1fk", value / 1e3);
  return formatted("%.1f", value);
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  char text[64];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

std::string progress_line(const Json& record) {
  if (record.contains("text")) return record["text"].get<std::string>();
  std::string line = "epoch " + of(record, "epoch", "epochs") + ", step " + of(record, "step", "steps");
  if (number_in(record, "samples_per_second", -1) > 0)
    line += ", " + short_number(number_in(record, "samples_per_second", -1)) + "/s";
  const auto metrics = record.find("metrics");
  if (metrics != record.end() && metrics->is_object() && !metrics->empty()) line += ", " + metrics_text(*metrics);
  if (record.contains("loss")) line += ", loss " + formatted("%.4g", number_in(record, "loss", -1));
  if (number_in(record, "remaining_seconds", -1) >= 0)
    line += ", " + clock_text(number_in(record, "remaining_seconds", -1)) + " left";
  return line;
}

std::string metrics_line(const Json& record) {
  const std::string metrics = metrics_text(record.value("metrics", Json::object()));
  return str("epoch ", formatted("%.0f", number_in(record, "epoch", 0)), ", step ",
             formatted("%.0f", number_in(record, "step", 0)), ": ", metrics);
}

std::string result_text(const Json& summary, const std::string& folder) {
  if (summary.contains("bench")) return bench_result(summary["bench"]);
  // If the ranks changed in the last attempt, the last change has the final number of ranks.
  const Json changes = summary.value("membership", Json::array());
  const bool changed = !changes.empty() && number_in(changes.back(), "attempt", -1) == number_in(summary, "attempt", 0);
  const double count = changed ? number_in(changes.back(), "ranks", 1) : number_in(summary, "world_size", 1);
  const std::string ranks = str(summary.value("backend", ""), " with ", counted(int64_t(count), "rank"), "\n");
  const std::string steps = counted(int64_t(number_in(summary, "steps", 0)), "step");
  std::string text = number_in(summary, "train_seconds", -1) < 0  // a program without a convoy::Run counts no steps
                         ? "done: " + ranks
                         : number_in(summary, "steps_here", -1) == 0
                               ? str("done: nothing was left to train after ", steps, "\n")
                               : str("done: ", steps, " in ", clock_text(number_in(summary, "train_seconds", 0)), ", ",
                                     short_number(number_in(summary, "samples_per_second", 0)), " samples/s, ", ranks);
  const auto metrics = summary.find("metrics");
  if (metrics != summary.end() && metrics->is_object())
    for (const auto& [name, value] : metrics->items()) {
      if (!value.is_object()) continue;
      text += str("  ", name, ": last ", formatted("%.4g", number_in(value, "last", std::nan(""))), ", best ",
                  formatted("%.4g", number_in(value, "best", std::nan(""))), "\n");
    }
  if (const std::string times = breakdown_line(summary); !times.empty()) text += "  " + times + "\n";
  return text + "  " + folder + "/summary.json\n";
}

namespace {

constexpr std::chrono::milliseconds merge_window{100};
constexpr std::chrono::seconds plain_interval{10}, quiet_interval{5};

size_t terminal_width(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

RankLogs::File& RankLogs::file(const std::string& name) {
  auto [found, fresh] = files_.try_emplace(name);
  if (!fresh) return found->second;
  const std::string path = str(folder_, "/", name, ".log");
  // The owner of a log usually makes the folder before the first line.
  try {
    if (mkdir(folder_.c_str(), 0755) == 0 || errno == EEXIST) found->second.log = open_to_append(path);
  } catch (const Error& error) {
    if (log_) log_(str("no log of ", name, ": ", error.what()));  // must not stop a run
  }
  return found->second;
}

void RankLogs::failed(const std::string& name, File& file) {
  const int reason = errno;
  file.log = Descriptor();
  if (log_)
    log_(str(folder_, "/", name, ".log: cannot be written: ", error_text(reason), "; its lines are only shown here",
             reason == EFBIG ? "; see `ulimit -f`" : ""));
}

void RankLogs::open(int rank) { file(str("rank", rank)); }
void RankLogs::write(int rank, const std::string& line) { write(str("rank", rank), line); }

void RankLogs::write(const std::string& name, const std::string& line) {
  File& file = this->file(name);
  if (!file.log.valid() || file.size > limit_) return;
  file.size += line.size() + 1;
  const std::string text =
      file.size > limit_
          ? str("convoy: this log is full (", human_bytes(static_cast<double>(limit_)), "); the rest is left out\n")
          : line + "\n";
  if (!write_text(file.log.get(), text)) failed(name, file);
}

Console::Console(EventLoop& loop, int ranks, bool draw, bool quiet,
                 std::shared_ptr<std::set<std::string>> printed_before)
    : tasks_(loop),
      merger_(ranks, merge_window, [this](const std::string& line) { print_line(STDERR_FILENO, line); }),
      quiet_(quiet),
      progress_fd_(quiet ? STDERR_FILENO : STDOUT_FILENO),
      terminal_(draw && isatty(progress_fd_) == 1),
      printed_before_(std::move(printed_before)),
      last_plain_(quiet ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point()) {}

Console::~Console() {
  flush();
  if (printed_before_) printed_before_->merge(printed_);
}

void Console::rank_line(const std::string& host, int rank, const std::string& line) {
  const std::string text = without_time(line);
  if (is_failure(text) || (printed_before_ && printed_before_->count(text) > 0)) return;
  if (quiet_ && begins_with(text, "error: ")) return held_.push_back({host, rank, line});
  if (printed_before_) printed_.insert(text);
  merger_.add(LineMerger::Clock::now(), host, rank, line);
  schedule_flush();
}

void Console::schedule_flush() {
  if (flushing_ || !merger_.has_pending()) return;
  flushing_ = true;
  tasks_.after(merge_window, [this] {
    flushing_ = false;
    merger_.flush(LineMerger::Clock::now());
    schedule_flush();
  });
}

void Console::progress(const Json& record) {
  if (quiet_ && !record.contains("text")) return;
  progress_ = terminal_safe(progress_line(record));
  if (terminal_) return draw_progress();
  if (!quiet_ && record.contains("text")) return;  // such text has separate lines
  const auto now = std::chrono::steady_clock::now();
  if (now - last_plain_ < (quiet_ ? quiet_interval : plain_interval)) return;
  last_plain_ = now;
  print_line(progress_fd_, progress_);
}

bool Console::is_failure(const std::string& text) const {
  if (failure_.empty() || !quiet_) return !failure_.empty() && text == "error: " + failure_;
  return begins_with(text, "error: ") && ends_in(text, failure_);
}

void Console::metrics(const Json& record) {
  if (!quiet_) print_line(STDOUT_FILENO, metrics_line(record));
}

void Console::log(const std::string& text) {
  if (!quiet_) print("convoy: " + text);
}

void Console::failed(const std::string& text, const std::string& message) {
  failure_ = message;
  merger_.drop([this](const std::string& line) { return is_failure(line); });
  log(text);
}

void Console::print(const std::string& line) {
  merger_.flush_all();
  print_line(STDERR_FILENO, line);
}

void Console::result(const std::string& text) {
  flush();
  if (!quiet_) write_text(STDOUT_FILENO, terminal_safe(text));
}

void Console::flush() {
  for (const HeldLine& held : std::exchange(held_, {}))
    if (!is_failure(without_time(held.line))) merger_.add(LineMerger::Clock::now(), held.host, held.rank, held.line);
  merger_.flush_all();
  clear_progress();
  progress_.clear();
}

void Console::print_line(int fd, const std::string& line) {
  clear_progress();
  write_text(fd, terminal_safe(line) + "\n");
  if (terminal_) draw_progress();
}

void Console::clear_progress() {
  if (drawn_) write_text(progress_fd_, "\r\033[K");
  drawn_ = false;
}

void Console::draw_progress() {
  if (progress_.empty()) return;
  write_text(progress_fd_, "\r\033[K" + progress_.substr(0, terminal_width(progress_fd_) - 1));
  drawn_ = true;
}

}  // namespace convoy
