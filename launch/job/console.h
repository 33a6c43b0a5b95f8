// Output of a run: ranks' lines go to logs/rankN.log and stderr, the progress line and results to stdout.
//
// Threads: the event loop's. A terminal has one progress line at the bottom; other outputs get plain lines.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/files/files.h"
#include "launch/process/event_loop.h"
#include "launch/text/text_table.h"

namespace convoy {

// --- Texts made from the records that rank 0 posts ---

// The record's "text", or "epoch 3/20, step 1200/8640, 105.3k/s, loss 0.2213, 0:41 left".
std::string progress_line(const Json& record);
// "epoch 3, step 1296: evaluated hr@10 0.6120, ndcg@10 0.3451".
std::string metrics_line(const Json& record);
// Result of a finished run, several lines.
std::string result_text(const Json& summary, const std::string& folder);

std::string short_number(double value);  // 105.3k, 1.05M
std::string clock_text(double seconds);  // 0:41, 1:02:03

// One log file per rank. At the size limit it writes a notice and drops all later lines. A log that cannot be written
// does not end the run: `log` receives the reason, once per file.
class RankLogs {
 public:
  using Log = std::function<void(const std::string&)>;
  static constexpr size_t usual_limit = 64u << 20;  // bytes of a log
  explicit RankLogs(std::string folder, size_t limit = usual_limit, Log log = nullptr)
      : folder_(std::move(folder)), limit_(limit), log_(std::move(log)) {}
  void open(int rank);  // creates the log, also for a rank that prints nothing
  void write(int rank, const std::string& line);
  void write(const std::string& name, const std::string& line);

 private:
  struct File {
    Descriptor log;
    size_t size = 0;
  };
  File& file(const std::string& name);
  void failed(const std::string& name, File& file);
  std::string folder_;
  size_t limit_;
  Log log_;
  std::map<std::string, File> files_;
};

class Console {
 public:
  // `draw`: the progress line is redrawn if stdout is a terminal. Pass false under mpirun, which gives every rank a
  // terminal. `quiet`: prints only lines of ranks and of mpirun, and progress records that have a text, all on stderr.
  // The caller then reports the rest, also the failure.
  // `printed_before`: lines of ranks that are not printed again; gets the lines of this console at its end.
  Console(EventLoop& loop, int ranks, bool draw, bool quiet = false,
          std::shared_ptr<std::set<std::string>> printed_before = nullptr);
  ~Console();
  void rank_line(const std::string& host, int rank, const std::string& line);
  void progress(const Json& record);
  void metrics(const Json& record);
  void log(const std::string& text);  // a message of convoy, on stderr
  // Prints `text`, the report of a failure. Lines of ranks that only log its `message` are not printed.
  void failed(const std::string& text, const std::string& message);
  void print(const std::string& line);   // unchanged, on stderr
  void result(const std::string& text);  // on stdout
  void flush();

 private:
  void print_line(int fd, const std::string& line);
  void clear_progress();
  void draw_progress();
  void schedule_flush();
  // True for a line in which a rank only logs the failure: "error: MESSAGE"; if the console is quiet, also
  // "error: rank 0 on h, step 3: MESSAGE".
  bool is_failure(const std::string& text) const;

  OwnedTasks tasks_;
  LineMerger merger_;
  bool quiet_;
  int progress_fd_;
  bool terminal_;  // progress is shown on a terminal
  std::shared_ptr<std::set<std::string>> printed_before_;
  std::set<std::string> printed_;
  std::string failure_;  // its message
  struct HeldLine {
    std::string host;
    int rank;
    std::string line;
  };
  std::vector<HeldLine> held_;  // quiet: errors of ranks; the caller reports one of them
  bool flushing_ = false;
  std::string progress_;  // as last drawn
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_plain_;
};

}  // namespace convoy
