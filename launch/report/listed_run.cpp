#include "launch/report/listed_run.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "core/base/text.h"
#include "core/config/run_config.h"
#include "core/files/files.h"
#include "core/files/run_files.h"
#include "core/rank_state/summary.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

double written_at(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? double(status.st_mtim.tv_sec) + 1e-9 * double(status.st_mtim.tv_nsec) : 0;
}

Json object_of_key(const Json& json, const char* key) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  return value.is_object() ? value : Json::object();
}

// The evaluations so far of a run without a final summary, as a summary has them.
Json recorded_metrics(const std::string& path) {
  Json metrics = Json::object();
  for_each_object(path, [&](const Json& record) {
    if (text_in(record, "kind") != "evaluate") return;
    const Json values = object_of_key(record, "metrics");
    const Json lowest = record.value("lower_is_better", Json());
    const bool directions = lowest.is_array();  // earlier versions did not record them
    std::set<std::string> lower_is_better;
    for (const Json& name : directions ? lowest : Json::array())
      if (name.is_string()) lower_is_better.insert(name.get<std::string>());
    for (const auto& [name, value] : values.items()) {
      if (!value.is_number()) continue;
      Json& known = metrics[name];
      const bool lower = lower_is_better.count(name) > 0 || (!directions && is_loss_name(name));
      const bool better = known.is_null() || (lower ? value < known["best"] : value > known["best"]);
      known["last"] = value;
      if (lower) known["lower_is_better"] = true;
      if (better) known.update({{"best", value}, {"best_step", record.value("step", 0)}});
    }
  });
  return metrics;
}

}  // namespace

bool is_loss_name(const std::string& metric) { return metric == "loss" || ends_in(metric, "loss"); }

std::string main_metric(const ListedRun& run, const std::string& wanted) {
  if (!wanted.empty()) return run.metrics.contains(wanted) ? wanted : "";
  const Json kept = object_of_key(object_of_key(run.config, "train"), "keep_best").value("metric", Json());
  if (kept.is_string() && run.metrics.contains(kept.get<std::string>())) return kept.get<std::string>();
  std::string first;
  for (const auto& [name, values] : run.metrics.items()) {
    if (!is_loss_name(name)) return name;
    if (first.empty()) first = name;
  }
  return first;
}

double value_of_metric(const ListedRun& run, const std::string& metric, const char* which) {
  return number_in(object_of_key(run.metrics, metric.c_str()), which, nan_value);
}

std::string number_or_dash(double value) { return std::isfinite(value) ? formatted("%.5g", value) : "-"; }

std::optional<ListedRun> listed_run(const std::string& folder) {
  std::error_code none;
  if (!fs::exists(folder + "/summary.json", none)) return std::nullopt;
  ListedRun run;
  run.folder = folder;
  run.name = fs::path(folder).filename().string();
  for (const char* file : {"/summary.json", "/metrics.jsonl", "/progress.json"})
    run.written = std::max(run.written, written_at(folder + file));
  const Json summary = read_summary(folder);
  run.status = summary.empty() ? "unreadable" : run_status(folder, summary);
  run.farm = !pipeline_folders(folder).empty();
  run.strategy = run.farm ? "farm" : text_in(summary, "strategy");
  run.step = whole_in(summary, "steps", -1);
  if (run.step < 0) {
    const Json progress = parsed_json(read_file_if_any(folder + "/progress.json"));
    run.step = whole_in(progress, "step", whole_in(object_of_key(summary, "failure"), "step", -1));
  }
  run.metrics = run.farm ? Json::object() : object_of_key(summary, "metrics");
  if (!run.farm && run.metrics.empty()) run.metrics = recorded_metrics(folder + "/metrics.jsonl");
  run.config = object_of_key(summary, "config");
  return run;
}

std::vector<ListedRun> listed_runs(const std::string& folder) {
  std::vector<ListedRun> runs;
  for (const std::string& name : names_in(folder)) {
    if (name.empty() || name.front() == '.') continue;
    const std::string path = (fs::path(folder) / name).string();
    std::optional<ListedRun> run = listed_run(path);
    if (!run) continue;
    runs.push_back(std::move(*run));
    for (const std::string& pipeline : pipeline_folders(path))
      if (std::optional<ListedRun> part = listed_run(pipeline)) runs.push_back(std::move(*part));
  }
  return runs;
}

std::vector<std::pair<std::string, std::vector<Json>>> differing_keys(const std::vector<ListedRun>& runs) {
  std::vector<Json> configs;
  for (const ListedRun& run : runs) configs.push_back(without_locations(run.config));
  std::vector<std::string> keys;
  for (const Json& config : configs)
    for (const Difference& difference : differences(configs.front(), config, {"name", "train.pause_after"}))
      if (std::find(keys.begin(), keys.end(), difference.key) == keys.end()) keys.push_back(difference.key);
  std::vector<std::pair<std::string, std::vector<Json>>> table;
  for (const std::string& key : keys) {
    std::vector<Json> values;
    for (const Json& config : configs) values.push_back(value_of_key(config, key));
    table.emplace_back(key, values);
  }
  return table;
}

}  // namespace convoy
