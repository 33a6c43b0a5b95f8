#include "launch/farm/report/report.h"

#include <string.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "core/base/version.h"
#include "core/control/exit_codes.h"
#include "core/data/formats/delimited.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"
#include "launch/job/console.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

const char* const copied[] = {"epochs", "steps", "samples", "parameters", "train_seconds", "samples_per_second"};

// The field `key` if it is an object, else {}: a summary may come from another version.
Json object_in(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_object() ? *found : Json::object();
}

Json finite_number_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() && std::isfinite(found->get<double>()) ? *found : Json();
}

Json metric_of(const PipelineResult& result, const std::string& metric) {
  return metric.empty() ? Json::object() : object_in(object_in(result.summary, "metrics"), metric.c_str());
}

bool is_loss(const std::string& metric) {
  const std::string end = "loss";
  return metric.size() >= end.size() && metric.compare(metric.size() - end.size(), end.size(), end) == 0;
}

// The metric that most pipelines have; a loss only if there is no other, because losses of different models are not
// comparable.
std::string common_metric(const std::vector<PipelineResult>& results) {
  std::map<std::string, int> users;
  std::vector<std::string> order;
  for (const PipelineResult& result : results) {
    const Json metrics = object_in(result.summary, "metrics");
    for (const auto& [name, values] : metrics.items())
      if (users[name]++ == 0) order.push_back(name);
  }
  const auto worth = [&](const std::string& name) { return std::make_pair(!is_loss(name), users.at(name)); };
  const auto best = std::max_element(order.begin(), order.end(),
                                     [&](const std::string& a, const std::string& b) { return worth(a) < worth(b); });
  return best == order.end() ? "" : *best;
}

Json row_of(const PipelineResult& result, const std::string& metric) {
  Json row = {{"place", nullptr}, {"pipeline", result.name}, {"status", result.status}};
  const Json values = metric_of(result, metric);
  row["value"] = finite_number_in(values, "last");
  row["best"] = finite_number_in(values, "best");
  row["attempts"] = result.attempts;
  row["cause"] = result.cause.empty() ? Json() : Json(result.cause);
  const Json summary = result.summary.is_object() ? result.summary : Json::object();
  for (const char* key : copied) row[key] = finite_number_in(summary, key);
  row["folder"] = result.folder;
  if (result.grid.is_object()) row["grid"] = result.grid;
  if (result.lost_at >= 0) row["stage"] = result.lost_at + 1;
  row["metrics"] = Json::object();
  const Json metrics = object_in(summary, "metrics");
  for (const auto& [name, entry] : metrics.items())
    if (entry.is_object())
      row["metrics"][name] = {{"last", finite_number_in(entry, "last")},
                              {"best", finite_number_in(entry, "best")},
                              {"best_step", finite_number_in(entry, "best_step")}};
  return row;
}

enum class Group { rated, lost, unfinished, unrated, others };

Group group_of(const Json& row) {
  const bool has_value = !row["value"].is_null();
  if (row["status"] == "done") return has_value ? Group::rated : Group::unrated;
  if (!has_value || row["status"] == "failed" || row["status"] == "stopped") return Group::others;
  return row["status"] == "lost" ? Group::lost : Group::unfinished;
}

bool is_seed(const std::string& key) { return key == "seed" || ends_in(key, ".seed"); }

// Text of a row's setting without its seeds; "" if it has none.
std::string setting_of(const Json& row) {
  std::vector<std::string> parts;
  const Json grid = object_in(row, "grid");
  for (const auto& [key, value] : grid.items())
    if (!is_seed(key)) parts.push_back(str(key, " ", value.is_string() ? value.get<std::string>() : value.dump()));
  return join(parts, ", ");
}

bool has_seeds(const Json& row) {
  const Json grid = object_in(row, "grid");
  for (const auto& [key, value] : grid.items())
    if (is_seed(key)) return true;
  return false;
}

// Mean and spread over the seeds of each setting. Empty if no setting has two.
Json settings_of(const std::vector<Json>& rows, bool lower) {
  std::map<std::string, std::vector<double>> values;
  bool several = false;
  for (const Json& row : rows) {
    if (group_of(row) != Group::rated || !has_seeds(row)) continue;
    std::vector<double>& of_setting = values[setting_of(row)];
    of_setting.push_back(row["value"].get<double>());
    several = several || of_setting.size() > 1;
  }
  std::vector<Json> settings;
  if (!several) return settings;
  for (const auto& [setting, all] : values) {
    settings.push_back({{"setting", setting},
                        {"runs", all.size()},
                        {"mean", mean_of(all)},
                        {"deviation", all.size() > 1 ? Json(deviation_of({all})) : Json()},
                        {"least", *std::min_element(all.begin(), all.end())},
                        {"most", *std::max_element(all.begin(), all.end())}});
  }
  std::stable_sort(settings.begin(), settings.end(), [lower](const Json& a, const Json& b) {
    const double left = a["mean"].get<double>(), right = b["mean"].get<double>();
    return lower ? left < right : left > right;
  });
  return settings;
}

std::string number_cell(const Json& value, const char* format = "%.4g") {
  return value.is_number() ? formatted(format, value.get<double>()) : "-";
}

std::string csv_line(const std::vector<Json>& fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    if (!fields[i].is_null())
      append_field(line, fields[i].is_string() ? fields[i].get<std::string>() : fields[i].dump(), ',');
  }
  return line + "\r\n";
}

constexpr size_t most_named = 8;  // pipelines in a message; the summary has all

std::string folder_within(const PipelineState& entry) { return "pipelines/" + entry.pipeline.name; }

std::vector<const PipelineState*> in_state(const std::vector<PipelineState>& pipelines, PipelineState::Status status) {
  std::vector<const PipelineState*> found;
  for (const PipelineState& entry : pipelines)
    if (entry.status == status) found.push_back(&entry);
  return found;
}

std::string named(const std::vector<const PipelineState*>& pipelines, bool causes) {
  std::vector<std::string> names;
  for (size_t i = 0; i < pipelines.size() && i < most_named; ++i)
    names.push_back(pipelines[i]->pipeline.name + (causes ? " (" + pipelines[i]->result.cause + ")" : ""));
  if (pipelines.size() > most_named) names.push_back(str(pipelines.size() - most_named, " more"));
  return join(names, ", ");
}

}  // namespace

bool lower_is_better(const std::vector<PipelineResult>& results, const LeaderboardOrder& order) {
  if (order.direction != "auto") return order.direction == "minimize";
  for (const PipelineResult& result : results)
    if (metric_of(result, order.metric).value("lower_is_better", false)) return true;
  return false;
}

Json last_metric(const Json& summary, const std::string& metric) {
  return finite_number_in(object_in(object_in(summary, "metrics"), metric.c_str()), "last");
}

Json leaderboard(const std::vector<PipelineResult>& results, const LeaderboardOrder& order) {
  LeaderboardOrder by = order;
  if (by.metric.empty()) by.metric = common_metric(results);
  const bool lower = lower_is_better(results, by);
  std::vector<Json> rows;
  for (const PipelineResult& result : results) rows.push_back(row_of(result, by.metric));
  std::stable_sort(rows.begin(), rows.end(), [lower](const Json& a, const Json& b) {
    if (group_of(a) != group_of(b)) return group_of(a) < group_of(b);
    if (group_of(a) > Group::unfinished) return false;
    if (group_of(a) == Group::lost && a["stage"] != b["stage"]) return a["stage"].get<int>() > b["stage"].get<int>();
    const double left = a["value"].get<double>(), right = b["value"].get<double>();
    return lower ? left < right : left > right;
  });
  int place = 0;
  for (Json& row : rows)
    if (group_of(row) <= Group::lost) row["place"] = ++place;
  Json board = {{"metric", by.metric.empty() ? Json() : Json(by.metric)},
                {"direction", lower ? "minimize" : "maximize"},
                {"rows", rows}};
  if (Json settings = settings_of(rows, lower); !settings.empty()) board["settings"] = std::move(settings);
  return board;
}

std::string leaderboard_table(const Json& leaderboard) {
  const std::string metric = leaderboard["metric"].is_string() ? leaderboard["metric"].get<std::string>() : "";
  std::vector<std::vector<std::string>> lines{{"", "pipeline", "status", metric.empty() ? "metric" : metric, "best",
                                               "epochs", "steps", "time", "rate", "tries"}};
  for (const Json& row : leaderboard["rows"]) {
    const bool rated = row["samples_per_second"].is_number(), timed = row["train_seconds"].is_number();
    std::string status = row["status"].get<std::string>();
    if (row["cause"].is_string() && row["cause"] != status) status += ": " + row["cause"].get<std::string>();
    if (row.contains("stage")) status += str(": rung ", row["stage"].get<int>());
    lines.push_back({number_cell(row["place"], "%.0f"), row["pipeline"].get<std::string>(), status,
                     number_cell(row["value"]), number_cell(row["best"]), number_cell(row["epochs"], "%.3g"),
                     number_cell(row["steps"], "%.0f"), timed ? clock_text(row["train_seconds"].get<double>()) : "-",
                     rated ? short_number(row["samples_per_second"].get<double>()) + "/s" : "-",
                     number_cell(row["attempts"], "%.0f")});
  }
  std::string text = text_table(lines, {0, 3, 4, 5, 6, 7, 8, 9});
  if (!leaderboard.contains("settings")) return text;
  lines = {{"setting", "runs", "mean " + metric, "deviation", "least", "most"}};
  for (const Json& setting : leaderboard["settings"])
    lines.push_back({setting["setting"] == "" ? "all" : setting["setting"].get<std::string>(),
                     number_cell(setting["runs"], "%.0f"), number_cell(setting["mean"]),
                     number_cell(setting["deviation"], "%.2g"), number_cell(setting["least"]),
                     number_cell(setting["most"])});
  return text + "\n" + text_table(lines, {1, 2, 3, 4, 5});
}

std::string leaderboard_csv(const Json& leaderboard) {
  std::vector<std::string> metrics, keys;
  std::set<std::string> known, known_keys;
  for (const Json& row : leaderboard["rows"]) {
    const Json grid = object_in(row, "grid");
    for (const auto& [key, value] : grid.items())
      if (known_keys.insert(key).second) keys.push_back(key);
  }
  for (const Json& row : leaderboard["rows"])
    for (const auto& [name, values] : row["metrics"].items())
      if (known.insert(name).second) metrics.push_back(name);
  std::vector<std::string> columns{"place", "pipeline", "status", "cause", "attempts"};
  columns.insert(columns.end(), std::begin(copied), std::end(copied));
  columns.push_back("folder");
  std::vector<Json> heading(columns.begin(), columns.end());
  const std::set<std::string> names(columns.begin(), columns.end());
  for (const std::string& key : keys) heading.push_back(names.count(key) + known.count(key) > 0 ? "grid." + key : key);
  for (const std::string& metric : metrics) {
    heading.push_back(metric);
    heading.push_back(metric + " best");
  }
  std::string text = csv_line(heading);
  for (const Json& row : leaderboard["rows"]) {
    std::vector<Json> fields;
    for (const std::string& column : columns) fields.push_back(row[column]);
    const Json grid = object_in(row, "grid");
    for (const std::string& key : keys) fields.push_back(grid.value(key, Json()));
    for (const std::string& metric : metrics) {
      const Json values = object_in(row["metrics"], metric.c_str());
      fields.push_back(finite_number_in(values, "last"));
      fields.push_back(finite_number_in(values, "best"));
    }
    text += csv_line(fields);
  }
  return text;
}

void write_leaderboard(const std::string& folder, const Json& leaderboard) {
  write_whole(folder + "/leaderboard.csv", leaderboard_csv(leaderboard), true);
}

bool is_over(PipelineState::Status status) {
  return status != PipelineState::Status::waiting && status != PipelineState::Status::running &&
         status != PipelineState::Status::paused;
}

const char* name_of(PipelineState::Status status) {
  static const char* const names[] = {"waiting", "running", "paused", "done",
                                      "lost",    "failed",  "stopped"};  // in the enum's order
  return names[static_cast<size_t>(status)];
}

Json to_json(const PipelineState& entry, const Json& summary) {
  using Status = PipelineState::Status;
  const bool ended = is_over(entry.status);
  const bool lost = entry.status == Status::lost, failed = ended && entry.status != Status::done && !lost;
  Json json = {{"name", entry.pipeline.name},
               {"status", name_of(entry.status)},
               {"exit_code", ended ? Json(entry.result.exit_code) : Json()},
               {"attempts", entry.starts},
               {"cause", failed ? Json(entry.result.cause) : Json()},
               {"message", (failed || lost) && !entry.result.message.empty() ? Json(entry.result.message) : Json()},
               {"folder", folder_within(entry)},
               {"metrics", summary.value("metrics", Json::object())}};
  if (entry.lost_at >= 0) json["stage"] = entry.lost_at + 1;
  return json;
}

double farm_seconds(const std::string& folder, const Json& summary) {
  const double before = number_in(summary, "train_seconds", 0), began = number_in(summary, "started", std::nan(""));
  if (std::isnan(began)) return before;
  double last = began;
  for (const char* file : {"/journal.jsonl", "/metrics.jsonl"}) {
    const std::string text = read_file_if_any(folder + file);
    const size_t end = text.rfind('\n');
    if (end == std::string::npos || end == 0) continue;
    const size_t begin = text.rfind('\n', end - 1) + 1;  // npos + 1 is 0
    last = std::max(last, number_in(parsed_json(text.substr(begin, end - begin)), "time", last));
  }
  return before + (last - began);
}

FarmEnd farm_end(const std::vector<PipelineState>& pipelines, int stop_signal) {
  const auto failed = in_state(pipelines, PipelineState::Status::failed);
  const auto done = in_state(pipelines, PipelineState::Status::done);
  const auto lost = in_state(pipelines, PipelineState::Status::lost);
  if (stop_signal != 0 && done.size() + lost.size() + failed.size() < pipelines.size())
    return {exit_code::stopped, name_of(Failure::stopped),
            str("stopped by SIG", sigabbrev_np(stop_signal), " with ", done.size(), " of ", pipelines.size(),
                " pipelines done; the same command resumes the rest")};
  if (!lost.empty() && lost.size() == pipelines.size())
    return {exit_code::pipelines_failed, "pipelines",
            str("all ", lost.size(), " pipelines lost at a rung of strategy.halving, because none reported ",
                "strategy.metric; none trained to the end")};
  if (failed.empty()) return {};
  return {exit_code::pipelines_failed, "pipelines",
          str(failed.size(), " of ", pipelines.size(), " pipelines failed: ", named(failed, true))};
}

Json farm_summary(const FarmRun& run, const std::vector<PipelineState>& pipelines, int attempt, int slots,
                  double seconds, const FarmEnd* end) {
  Json summary = {{"status", end == nullptr                            ? "running"
                             : end->exit_code == 0                     ? "done"
                             : end->cause == name_of(Failure::stopped) ? "stopped"
                                                                       : "failed"},
                  {"exit_code", end == nullptr ? Json() : Json(end->exit_code)},
                  {"name", run.name},
                  {"strategy", farm_strategy},
                  {"backend", nullptr},
                  {"world_size", slots},
                  {"ranks", Json::array()}};
  Json items = Json::array();
  std::vector<PipelineResult> results;
  double samples = 0, parameters = 0, steps = 0;
  for (const PipelineState& entry : pipelines) {
    const Json pipeline_summary = end != nullptr ? read_summary(entry.folder) : Json::object();
    items.push_back(to_json(entry, pipeline_summary));
    samples += number_in(pipeline_summary, "samples", 0);
    parameters += number_in(pipeline_summary, "parameters", 0);
    steps += number_in(pipeline_summary, "steps", 0);
    results.push_back({entry.pipeline.name, name_of(entry.status), entry.starts, entry.result.cause,
                       folder_within(entry), pipeline_summary, entry.pipeline.grid,
                       entry.status == PipelineState::Status::lost ? entry.lost_at : -1});
  }
  summary["parameters"] = static_cast<int64_t>(parameters);
  summary["steps"] = static_cast<int64_t>(steps);
  summary["samples"] = static_cast<int64_t>(samples);
  summary["train_seconds"] = seconds;
  summary["samples_per_second"] = seconds > 0 ? samples / seconds : 0;
  summary["metrics"] = Json::object();
  const bool failed = end != nullptr && !end->cause.empty();
  summary["failure"] =
      !failed ? Json() : Json{{"rank", nullptr},         {"step", nullptr},
                              {"signal", nullptr},       {"cause", end->cause},
                              {"message", end->message}, {"host", end->host.empty() ? Json() : Json(end->host)}};
  summary["pipelines"] = items;
  summary["leaderboard"] = end == nullptr ? Json() : leaderboard(results, {run.farm.metric, run.farm.direction});
  summary["inject"] = run.arguments.faults;
  std::error_code none;
  summary["directory"] = std::filesystem::current_path(none).string();  // relative data paths start here
  summary["attempt"] = attempt;
  summary["version"] = version;
  summary["config"] = run.resolved;
  return summary;
}

std::string farm_progress(const std::vector<PipelineState>& pipelines) {
  std::vector<std::string> counts;
  const auto running = in_state(pipelines, PipelineState::Status::running);
  const auto add = [&](size_t count, const char* one, const char* several, const std::string& more = "") {
    if (count > 0) counts.push_back(str(count, count == 1 ? one : several, more));
  };
  add(running.size(), " runs", " run", running.empty() ? "" : " (" + named(running, false) + ")");
  add(in_state(pipelines, PipelineState::Status::waiting).size(), " waits", " wait");
  add(in_state(pipelines, PipelineState::Status::paused).size(), " is paused", " are paused");
  add(in_state(pipelines, PipelineState::Status::done).size(), " is done", " are done");
  add(in_state(pipelines, PipelineState::Status::lost).size(), " was lost", " were lost");
  add(in_state(pipelines, PipelineState::Status::failed).size(), " failed", " failed");
  return join(counts, ", ");
}

// --- The spread of a metric over seeds ---

namespace {

int freedom_of(const std::vector<std::vector<double>>& groups) {
  int freedom = 0;
  for (const std::vector<double>& group : groups) freedom += std::max(0, int(group.size()) - 1);
  return freedom;
}

}  // namespace

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? std::nan("") : sum / double(values.size());
}

double deviation_of(const std::vector<std::vector<double>>& groups) {
  double squares = 0;
  for (const std::vector<double>& group : groups) {
    const double middle = mean_of(group);
    for (const double value : group) squares += (value - middle) * (value - middle);
  }
  const int freedom = freedom_of(groups);
  return freedom > 0 ? std::sqrt(squares / freedom) : std::nan("");
}

double student_quantile(int degrees_of_freedom) {
  static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                 2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  constexpr int rows = sizeof table / sizeof *table;
  if (degrees_of_freedom < 1) return std::nan("");
  if (degrees_of_freedom <= rows) return table[degrees_of_freedom - 1];
  return 1.960 + 2.5 / degrees_of_freedom;  // within 0.002 beyond the table
}

SpreadTest spread_test(const std::vector<double>& a, const std::vector<double>& b,
                       const std::vector<std::vector<double>>& others) {
  SpreadTest test;
  test.runs_a = int(a.size());
  test.runs_b = int(b.size());
  test.difference = mean_of(b) - mean_of(a);
  std::vector<std::vector<double>> groups = others;
  groups.insert(groups.end(), {a, b});
  const int freedom = freedom_of(groups);
  test.deviation = deviation_of(groups);
  test.limit = student_quantile(freedom) * test.deviation * std::sqrt(1.0 / double(a.size()) + 1.0 / double(b.size()));
  return test;
}

}  // namespace convoy
