#include "launch/farm/leaderboard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "launch/progress.h"
#include "launch/summary.h"
#include "launch/text_table.h"

namespace convoy {
namespace {

const char* const copied[] = {"epochs", "steps", "samples", "parameters", "train_seconds", "samples_per_second"};

// A member that is an object; {} for anything else, since a summary may come from another version.
Json object_in(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_object() ? *found : Json::object();
}

Json number_in(const Json& json, const char* key) {
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

// The metric that most pipelines were evaluated by, a loss only where there is nothing else: losses of unlike models say nothing
// of each other.
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

bool lower_is_better(const std::vector<PipelineResult>& results, const LeaderboardOrder& order) {
  if (order.direction != "auto") return order.direction == "minimize";
  for (const PipelineResult& result : results)
    if (metric_of(result, order.metric).value("lower_is_better", false)) return true;
  return false;
}

Json row_of(const PipelineResult& result, const std::string& metric) {
  Json row = {{"place", nullptr}, {"pipeline", result.name}, {"status", result.status}};
  const Json values = metric_of(result, metric);
  row["value"] = number_in(values, "last");
  row["best"] = number_in(values, "best");
  row["attempts"] = result.attempts;
  row["cause"] = result.cause.empty() ? Json() : Json(result.cause);
  const Json summary = result.summary.is_object() ? result.summary : Json::object();
  for (const char* key : copied) row[key] = number_in(summary, key);
  row["folder"] = result.folder;
  if (result.grid.is_object()) row["grid"] = result.grid;
  row["metrics"] = Json::object();
  const Json metrics = object_in(summary, "metrics");
  for (const auto& [name, entry] : metrics.items())
    if (entry.is_object())
      row["metrics"][name] = {{"last", number_in(entry, "last")},
                              {"best", number_in(entry, "best")},
                              {"best_step", number_in(entry, "best_step")}};
  return row;
}

int group_of(const Json& row) { return row["status"] != "done" ? 2 : row["value"].is_null() ? 1 : 0; }

std::string figure(const Json& value, const char* format = "%.4g") {
  if (!value.is_number()) return "-";
  char text[64];
  std::snprintf(text, sizeof text, format, value.get<double>());
  return text;
}

std::string csv_field(const Json& value) {
  if (value.is_null()) return "";
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const std::vector<Json>& fields) {
  std::vector<std::string> texts;
  for (const Json& field : fields) texts.push_back(csv_field(field));
  return join(texts, ",") + "\r\n";
}

}  // namespace

Json leaderboard(const std::vector<PipelineResult>& results, const LeaderboardOrder& order) {
  LeaderboardOrder by = order;
  if (by.metric.empty()) by.metric = common_metric(results);
  const bool lower = lower_is_better(results, by);
  std::vector<Json> rows;
  for (const PipelineResult& result : results) rows.push_back(row_of(result, by.metric));
  std::stable_sort(rows.begin(), rows.end(), [lower](const Json& a, const Json& b) {
    if (group_of(a) != group_of(b)) return group_of(a) < group_of(b);
    if (group_of(a) != 0) return false;
    const double left = a["value"].get<double>(), right = b["value"].get<double>();
    return lower ? left < right : left > right;
  });
  int place = 0;
  for (Json& row : rows)
    if (group_of(row) == 0) row["place"] = ++place;
  return {{"metric", by.metric.empty() ? Json() : Json(by.metric)},
          {"direction", lower ? "minimize" : "maximize"},
          {"rows", rows}};
}

std::string leaderboard_table(const Json& leaderboard) {
  const std::string metric = leaderboard["metric"].is_string() ? leaderboard["metric"].get<std::string>() : "";
  std::vector<std::vector<std::string>> lines{{"", "pipeline", "status", metric.empty() ? "metric" : metric, "best",
                                               "epochs", "steps", "time", "rate", "tries"}};
  for (const Json& row : leaderboard["rows"]) {
    const bool rated = row["samples_per_second"].is_number(), timed = row["train_seconds"].is_number();
    std::string status = row["status"].get<std::string>();
    if (row["cause"].is_string() && row["cause"] != status) status += ": " + row["cause"].get<std::string>();
    lines.push_back({figure(row["place"], "%.0f"), row["pipeline"].get<std::string>(), status, figure(row["value"]),
                     figure(row["best"]), figure(row["epochs"], "%.3g"), figure(row["steps"], "%.0f"),
                     timed ? clock_text(row["train_seconds"].get<double>()) : "-",
                     rated ? short_number(row["samples_per_second"].get<double>()) + "/s" : "-",
                     figure(row["attempts"], "%.0f")});
  }
  return text_table(lines, {0, 3, 4, 5, 6, 7, 8, 9});
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
      fields.push_back(number_in(values, "last"));
      fields.push_back(number_in(values, "best"));
    }
    text += csv_line(fields);
  }
  return text;
}

void write_leaderboard(const std::string& folder, const Json& leaderboard) {
  write_whole(folder + "/leaderboard.csv", leaderboard_csv(leaderboard), true);
}

}  // namespace convoy
