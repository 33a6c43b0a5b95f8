// The pipelines of a farm by how well they did: for summary.json, for people, and as CSV. Pure but for the writing.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

struct PipelineResult {
  std::string name;
  std::string status;  // done | failed | cancelled | …, as the farm tells it
  int attempts = 0;
  std::string cause;    // of a failure; "" else
  std::string folder;   // within the run folder, as "pipelines/NAME"
  Json summary;         // of the pipeline's own folder; {} where it never started
  Json grid = nullptr;  // of a point of a grid: its values by key path
};

struct LeaderboardOrder {
  std::string metric;              // "": what most pipelines have, a loss only where none has another
  std::string direction = "auto";  // auto | maximize | minimize; auto: as the metric's own summary has it
};

// {metric, direction, rows: [{place, pipeline, status, value, best, attempts, cause, epochs, steps, samples, parameters,
// train_seconds, samples_per_second, folder, metrics: {name: {last, best, best_step}}, grid: {key path: value}}]}: done ones first, by `value`, the
// metric of the final model; then those that are done without that metric, then the rest, each in the order given.
// Numbers that are not known are null; a metric that is no finite number counts as not known.
Json leaderboard(const std::vector<PipelineResult>& results, const LeaderboardOrder& order);

std::string leaderboard_table(const Json& leaderboard);  // with a heading, for the console
// A line per pipeline, after RFC 4180: place, pipeline, status, …, the grid's keys, and each metric's last and best. A key
// with the name of another column gets "grid." in front.
std::string leaderboard_csv(const Json& leaderboard);
// FOLDER/leaderboard.csv, whole or not at all; Error(io).
void write_leaderboard(const std::string& folder, const Json& leaderboard);

}  // namespace convoy
