// `convoy runs` and `convoy compare`: reports on run folders. They start nothing and read summary.json only.
#pragma once
#include <cmath>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace convoy {

// --- `convoy runs [DIR] [--metric M] [--json]` ---

struct RunsArguments {
  std::string folder = "runs";
  std::string metric;  // the column; "": that of train.keep_best, else the first that is no loss, else the first
  bool json = false;
};

// Lists the runs in a folder, newest first, with status, step, best metric and age, and the runs of farms in it.
// Returns 0. Error(command_line) if there is no such folder.
int runs_command(const RunsArguments& arguments, std::ostream& out);

// A run as its folder describes it.
struct ListedRun {
  std::string folder;  // as it can be typed
  std::string name;
  std::string status;  // done, running, stopped, failed, ended (running, and no process runs it), unreadable
  std::string strategy;
  int64_t step = -1;   // -1: unknown
  double written = 0;  // unix time of the last change of its summary, metrics or progress
  Json metrics;        // of summary.json
  Json config;         // resolved
  bool farm = false;   // `metrics` and `config` are empty
};
// The run in this folder; nullopt if there is none.
std::optional<ListedRun> listed_run(const std::string& folder);
// Runs directly in a folder, and those of farms in it, in the order of their names.
std::vector<ListedRun> listed_runs(const std::string& folder);

// A value of the run's summary: `which` is last, best or best_step; NaN if it has none.
double value_of_metric(const ListedRun& run, const std::string& metric, const char* which);
// The metric by which runs are listed: `wanted` if the run has it, else that of train.keep_best, else the first that is
// no loss, else the first; "" if the run has none.
std::string main_metric(const ListedRun& run, const std::string& wanted);
bool is_loss_name(const std::string& metric);
std::string number_or_dash(double value);  // "-" for values that are not finite
Json number_or_null(double value);

// --- `convoy compare RUN RUN… [--best] [--json]` ---

struct CompareArguments {
  std::vector<std::string> runs;  // run folders; a farm's folder means all its runs
  bool best = false;              // compares the best values, not the last
  bool json = false;
};

// Prints differing keys, metrics side by side, their differences, and whether these exceed the spread over seeds.
// Returns 0. Error(command_line) if a folder holds no run, or if fewer than two remain.
int compare_command(const CompareArguments& arguments, std::ostream& out);

// Keys of the configurations that differ between any two of the runs, except `name` and train.pause_after, with the
// value of each run; null: that run has no such key.
std::vector<std::pair<std::string, std::vector<Json>>> differing_keys(const std::vector<ListedRun>& runs);

// --- Statistics of compare. Pure ---

double mean_of(const std::vector<double>& values);  // NaN if there are none
// Pooled standard deviation of the groups; NaN if every group has at most one value.
double deviation_of(const std::vector<std::vector<double>>& groups);

// Two groups of runs that differ only in their seeds.
struct SpreadTest {
  double difference = 0;  // mean of b - mean of a
  double deviation = 0;   // pooled standard deviation over seeds; NaN: every group has one run
  double limit = 0;       // differences below it are within the spread with 95 % confidence; NaN as above
  int runs_a = 0, runs_b = 0;
  bool exceeds() const { return std::abs(difference) > limit; }
};
// Student's test with pooled variance. `others`: values of further groups, for the pooled variance.
SpreadTest spread_test(const std::vector<double>& a, const std::vector<double>& b,
                       const std::vector<std::vector<double>>& others = {});
// Two-sided 95 % quantile of Student's t.
double student_quantile(int degrees_of_freedom);

}  // namespace convoy
