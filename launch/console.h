// What a run shows and stores: ranks' lines in logs/rankN.log and on stderr, the progress line and results on stdout.
//
// Threads: the event loop's. On a terminal one progress line is kept at the bottom; elsewhere plain lines.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/options.h"
#include "launch/event_loop.h"
#include "launch/folding.h"

namespace convoy {

// One file per rank; what a rank writes beyond the limit is left out, with a line that says so. A log that cannot be written
// ends no run: `say` gets the reason, once for each file.
class RankLogs {
 public:
  using Say = std::function<void(const std::string&)>;
  static constexpr size_t usual_limit = 64u << 20;  // bytes of a log
  explicit RankLogs(std::string folder, size_t limit = usual_limit, Say say = nullptr)
      : folder_(std::move(folder)), limit_(limit), say_(std::move(say)) {}
  ~RankLogs();
  RankLogs(const RankLogs&) = delete;
  RankLogs& operator=(const RankLogs&) = delete;
  void open(int rank);  // so that a silent rank has a log too
  void write(int rank, const std::string& line);
  void write(const std::string& name, const std::string& line);

 private:
  struct File {
    int fd = -1;
    size_t size = 0;
  };
  File& file(const std::string& name);
  void failed(const std::string& name, File& file);
  std::string folder_;
  size_t limit_;
  Say say_;
  std::map<std::string, File> files_;
};

class Console {
 public:
  // `draw`: a progress line may be redrawn where stdout is a terminal. mpirun gives every rank a terminal of its own, so
  // what a rank sees there says nothing. `quiet`: only lines of ranks and of mpirun are shown, for a caller that tells the
  // rest itself.
  Console(EventLoop& loop, int ranks, bool draw, bool quiet = false);
  ~Console();
  void rank_line(const std::string& host, int rank, const std::string& line);
  void progress(const Json& record);
  void metrics(const Json& record);
  void say(const std::string& text);     // a line of convoy's own, on stderr
  void print(const std::string& line);   // as it is, on stderr
  void result(const std::string& text);  // on stdout
  void flush();

 private:
  void print_error_line(const std::string& line);
  void print_line(const std::string& line);
  void clear_progress();
  void draw_progress();
  void schedule_flush();

  EventLoop& loop_;
  LineFolder folder_;
  bool terminal_;  // stdout is one
  bool quiet_;
  bool flushing_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::string progress_;  // as drawn last
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_plain_;
};

}  // namespace convoy
