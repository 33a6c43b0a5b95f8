// What a run folder tells of a run, for whoever watches: a farm's pipelines, or the one run that it is. Reads only, and of
// files that grow only what is new. Threads: one. What is not there yet, or half written, is left out.
#pragma once
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/options.h"
#include "launch/farm/process_trees.h"
#include "launch/farm/resources.h"

namespace convoy {

struct ViewRow {
  enum class Kind { running, waiting, stopped, failed, done };  // in the order of rows

  std::string name;
  Kind kind = Kind::waiting;
  std::string state;  // "training", "evaluating", "waiting", "preempted", "done", "stopped", "failed: memory"
  std::string folder;
  int64_t step = -1, steps = -1;  // done, in all; -1: not known
  double rate = -1;               // samples a second
  double loss = std::nan("");     // of the last report; at the end the last evaluated
  double remaining = -1;          // seconds
  int attempts = 0;
  std::optional<ResourceSample> use;
};

struct RunView {
  std::string name, folder;
  bool farm = false;
  bool over = false;          // nothing will change any more
  std::string status;         // "running", "done", "stopped", "failed", and in words what that means
  std::string result;         // when it is over: a table for people, of a farm its leaderboard
  double cpu_cores = -1;      // kept busy by all; -1: not known
  std::vector<ViewRow> rows;  // by kind; each in the order in which they came
};

class RunReader {
 public:
  // Error(command_line) where the folder holds no run.
  explicit RunReader(const std::string& folder);
  RunView read();

 private:
  struct Member;
  void read_journal();
  void read_farm(const Json& summary, RunView& view);
  void read_single(const Json& summary, RunView& view);
  void measure(pid_t convoy, ViewRow& row);

  std::string folder_;
  long journal_read_ = 0;  // bytes
  std::vector<std::string> order_;
  std::map<std::string, Json> events_;  // the last of each pipeline
  std::map<std::string, ViewRow> ended_;
  ProcessTrees trees_;
  pid_t measured_ = -1;
  double cpu_before_ = 0, time_before_ = 0;
};

// The last lines of the newest log in FOLDER/logs, without control characters; `path` says which one that is.
std::vector<std::string> log_tail(const std::string& folder, size_t lines, std::string& path);

// Heading and a line per row, cells in columns; `first` and `count`: which rows.
std::string view_heading(const RunView& view);
std::vector<std::string> view_lines(const RunView& view, size_t first, size_t count);

}  // namespace convoy
