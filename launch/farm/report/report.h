// Reports of a farm: summary.json, leaderboard, and lines for people.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/run/farm.h"

namespace convoy {

// --- Leaderboard: pipelines sorted by a metric. Pure functions, except write_leaderboard. ---

struct PipelineResult {
  std::string name;
  std::string status;  // as name_of(PipelineState::Status)
  int attempts = 0;
  std::string cause;    // cause of a failure, else ""
  std::string folder;   // relative to the run folder: "pipelines/NAME"
  Json summary;         // summary in the pipeline's folder; {} if it never started
  Json grid = nullptr;  // values by key path, for a point of a grid or search
  int lost_at = -1;     // rung of halving; -1: none
};

struct LeaderboardOrder {
  std::string metric;              // "": the metric that most pipelines have, a loss only if there is no other
  std::string direction = "auto";  // auto | maximize | minimize; auto: from the pipelines' summaries
};

bool lower_is_better(const std::vector<PipelineResult>& results, const LeaderboardOrder& order);
// The metric of the final model in a summary; null if it is missing or not finite.
Json last_metric(const Json& summary, const std::string& metric);

// {metric, direction, rows: [{place, pipeline, status, value, best, attempts, cause, epochs, steps, samples,
// parameters, train_seconds, samples_per_second, folder, metrics: {name: {last, best, best_step}}, grid: {key path:
// value}, stage: rung at which it was lost}], settings: [{setting, runs, mean, deviation, least, most}]}.
// Done pipelines come first, sorted by `value`, the metric of the final model; then those that halving ended, later
// rungs first; then those that have not ended, sorted by the value so far; then done ones without that metric; then the
// rest, in the given order. Unknown numbers and metrics that are not finite are null. `settings` is there if several
// done pipelines differ in seeds only: the sample's mean and deviation of `value` over them, in the order of the means.
Json leaderboard(const std::vector<PipelineResult>& results, const LeaderboardOrder& order);

std::string leaderboard_table(const Json& leaderboard);  // for the console, followed by a table of `settings`
// CSV by RFC 4180, a line per pipeline: place, pipeline, status, …, grid keys, and each metric's last and best value. A
// grid key with the name of another column gets the prefix "grid.".
std::string leaderboard_csv(const Json& leaderboard);
// Writes FOLDER/leaderboard.csv atomically; Error(io).
void write_leaderboard(const std::string& folder, const Json& leaderboard);

// --- Summary and progress ---

struct FarmEnd {
  int exit_code = 0;
  std::string cause;  // "" if all pipelines are done
  std::string message;
  std::string host = "";  // host of the failure; "": unknown
};
// Exit code 0: all are done; 1: some failed; 143: `stop_signal` ended the farm before all pipelines had ended.
FarmEnd farm_end(const std::vector<PipelineState>& pipelines, int stop_signal);

// Content of summary.json; `end` is null while the farm runs. `seconds`: since its start; `attempt`: earlier starts in
// this folder.
Json farm_summary(const FarmRun& run, const std::vector<PipelineState>& pipelines, int attempt, int slots,
                  double seconds, const FarmEnd* end);

// Seconds of all starts in this folder. `started` is in the summary of a farm that has not ended: the unix time of its
// last start, which counts until the last record.
double farm_seconds(const std::string& folder, const Json& summary);

// "2 run (ncf, gpt), 3 wait, 1 is done"
std::string farm_progress(const std::vector<PipelineState>& pipelines);

// --- The spread of a metric over seeds. Pure functions ---

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
