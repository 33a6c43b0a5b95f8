// Reads the state of a run or of a farm's pipelines from a run folder, and formats it for `convoy top`. It reads only
// the new data of growing files. Files that are missing or incomplete are left out. Threads: one.
#pragma once
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "launch/farm/monitor/resources.h"

namespace convoy {

struct ViewRow {
  enum class Kind { running, waiting, stopped, failed, done };  // rows are sorted by it

  std::string name;
  Kind kind = Kind::waiting;
  std::string state;  // "training", "evaluating", "waiting", "preempted", "done", "stopped", "failed: memory"
  std::string folder;
  int64_t step = -1, steps = -1;  // completed steps, and their total; -1: unknown
  double rate = -1;               // samples per second; -1: unknown
  double loss = std::nan("");     // last reported; after the end last evaluated; NaN: unknown
  double remaining = -1;          // seconds; -1: unknown
  int attempts = 0;
  std::optional<ResourceSample> use;
};

struct RunView {
  std::string name, folder;
  bool farm = false;
  bool over = false;          // no process runs it
  std::string status;         // "running", "done", "stopped" or "failed", with an explanation
  std::string result;         // after the end: result of the run, or leaderboard of a farm
  double cpu_cores = -1;      // busy cores, sum over the rows; -1: unknown
  std::vector<ViewRow> rows;  // sorted by kind, then by arrival
};

class RunReader {
 public:
  // Error(command_line) if the folder contains no run.
  explicit RunReader(const std::string& folder);
  RunView read();

 private:
  void read_journal();
  void read_farm(const Json& summary, RunView& view);
  void read_single(const Json& summary, RunView& view);
  void measure(pid_t process, ViewRow& row);

  std::string folder_;
  long journal_read_ = 0;  // bytes
  std::vector<std::string> order_;
  std::map<std::string, Json> events_;  // last event of each pipeline
  std::map<std::string, ViewRow> ended_;
  ProcessTrees trees_;
  pid_t measured_ = -1;
  ResourceSample use_;  // resources used by `measured_`
};

// Last lines of the newest log in FOLDER/logs, without control characters. `path`: receives the path of that log.
std::vector<std::string> log_tail(const std::string& folder, size_t lines, std::string& path);

// One line about the whole run.
std::string view_heading(const RunView& view);
// Column names, then one line per row from `first`, at most `count`.
std::vector<std::string> view_lines(const RunView& view, size_t first, size_t count);

// --- Screen ---

// Draws on the whole terminal, and restores it at the end, on a signal, and while suspended. At most one object at a
// time. Threads: one.
class Screen {
 public:
  // True if stdin and stdout are a terminal that supports drawing.
  static bool possible();

  Screen();  // Error(io) if the terminal does not support it: check possible() first
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Line {
    std::string text;  // UTF-8; truncated to the width of the terminal
    bool bold = false;
    bool chosen = false;
  };
  void draw(const std::vector<Line>& lines);
  size_t rows() const;  // present height of the terminal

  enum class Key { none, quit, up, down, page_up, page_down, log, resized, other };
  Key wait_for_key(int milliseconds);
  // The signal received that ends the program: SIGINT, SIGTERM, SIGHUP or SIGQUIT; 0: none.
  int signal() const;
};

// --- RunDetails: details of the selected run ---

// Shows the time breakdown of a run, and curves of its metrics. Reads only the new lines of a growing metrics.jsonl.
// Threads: one.
class RunDetails {
 public:
  explicit RunDetails(std::string folder) : folder_(std::move(folder)) {}

  // The time of rank 0 by part, the advice after the end, and curves of `width` columns. Leaves out parts that are not
  // known yet.
  std::vector<std::string> lines(size_t width);

 private:
  void read_metrics();

  const std::string folder_;
  long read_ = 0;                   // bytes of metrics.jsonl
  std::vector<std::string> names_;  // names of curves, in order of their first value
  std::map<std::string, std::vector<std::pair<double, double>>> curves_;  // step and value, by name
};

// A curve of dots, `rows` lines of `columns` characters of Braille: each has two columns and four rows of dots. Each
// column of dots is the mean of the values in its range of steps.
std::vector<std::string> braille_curve(const std::vector<std::pair<double, double>>& points, size_t columns,
                                       size_t rows);

}  // namespace convoy
