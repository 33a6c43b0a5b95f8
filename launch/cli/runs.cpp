#include "launch/cli/commands.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <ostream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "launch/report/listed_run.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

std::string age_text(double seconds) {
  if (seconds < 90) return formatted("%.0f s", std::max(0.0, seconds));
  if (seconds < 90 * 60) return formatted("%.0f min", seconds / 60);
  if (seconds < 36 * 3600) return formatted("%.0f h", seconds / 3600);
  return formatted("%.0f days", seconds / 86400);
}

struct BestValue {
  std::string metric;  // "": there is none
  double value, step;
};

BestValue best_of_run(const ListedRun& run, const std::string& wanted) {
  const std::string metric = main_metric(run, wanted);
  return {metric, value_of_metric(run, metric, "best"), value_of_metric(run, metric, "best_step")};
}

// The best value of a farm's pipelines, of `wanted`, or strategy.metric, or the first pipeline's main metric.
BestValue best_of_farm(const ListedRun& farm, std::string wanted) {
  const Json metric = value_of_key(farm.config, "strategy.metric");
  const Json direction = value_of_key(farm.config, "strategy.direction");
  if (wanted.empty() && metric.is_string()) wanted = metric.get<std::string>();
  BestValue best = best_of_run(farm, wanted);
  for (const std::string& folder : pipeline_folders(farm.folder)) {
    const std::optional<ListedRun> run = listed_run(folder);
    if (!run) continue;
    const BestValue one = best_of_run(*run, wanted);
    if (!std::isfinite(one.value)) continue;
    wanted = one.metric;
    const bool lower = direction == "minimize" ||
                       (direction != "maximize" && run->metrics[one.metric].value("lower_is_better", false));
    if (best.metric.empty() || (lower ? one.value < best.value : one.value > best.value)) best = one;
  }
  return best;
}

}  // namespace

int runs_command(const RunsArguments& arguments, std::ostream& out) {
  std::error_code none;
  if (!fs::is_directory(arguments.folder, none))
    throw Error(Failure::command_line, "convoy runs: there is no folder ", arguments.folder,
                "; name the folder that has the runs, as in convoy runs /data/runs");
  std::vector<ListedRun> runs = listed_runs(arguments.folder);
  if (runs.empty())
    if (std::optional<ListedRun> run = listed_run(arguments.folder)) runs.push_back(std::move(*run));
  std::stable_sort(runs.begin(), runs.end(),
                   [](const ListedRun& a, const ListedRun& b) { return a.written > b.written; });
  const double now = unix_seconds();
  Json list = Json::array();
  std::vector<std::vector<std::string>> lines{
      {"run", "status", "strategy", "step", "metric", "best", "at step", "age"}};
  for (const ListedRun& run : runs) {
    const auto [metric, best, at] = run.farm ? best_of_farm(run, arguments.metric) : best_of_run(run, arguments.metric);
    lines.push_back({run.folder, run.status, run.strategy, run.step < 0 ? "-" : std::to_string(run.step),
                     metric.empty() ? "-" : metric, number_or_dash(best),
                     std::isfinite(at) ? formatted("%.0f", at) : "-", age_text(now - run.written)});
    list.push_back({{"folder", run.folder},
                    {"status", run.status},
                    {"strategy", run.strategy},
                    {"step", run.step < 0 ? Json() : Json(run.step)},
                    {"metric", metric.empty() ? Json() : Json(metric)},
                    {"best", number_or_null(best)},
                    {"best_step", number_or_null(at)},
                    {"age_seconds", now - run.written}});
  }
  if (arguments.json)
    out << json_text(list) << '\n';
  else if (runs.empty())
    out << "no runs in " << arguments.folder << '\n';
  else
    out << text_table(lines, {3, 5, 6, 7});
  return exit_code::done;
}

}  // namespace convoy
