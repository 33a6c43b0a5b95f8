// Runs as their folders describe them, for lists, comparisons and reports. Reads summary.json and, for an unfinished
// run, metrics.jsonl and progress.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace convoy {

struct ListedRun {
  std::string folder;  // as it can be typed
  std::string name;
  std::string status;  // done, running, stopped, failed, ended (running, and no process runs it), unreadable
  std::string strategy;
  int64_t step = -1;   // -1: unknown
  double written = 0;  // unix time of the last change of its summary, metrics or progress
  Json metrics;        // `metrics` of summary.json
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

// Keys of the configurations that differ between any two of the runs, except `name` and train.pause_after, with the
// value of each run; null: that run has no such key.
std::vector<std::pair<std::string, std::vector<Json>>> differing_keys(const std::vector<ListedRun>& runs);

}  // namespace convoy
