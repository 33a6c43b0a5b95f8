#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <ostream>
#include <set>

#include "core/base/error.h"
#include "core/config/run_config.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "launch/cli/commands.h"
#include "launch/farm/report/report.h"
#include "launch/report/listed_run.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

// Keys that change only random draws, rounding or names. Runs of one group may differ in them.
const std::vector<std::string>& seed_keys() {
  static const std::vector<std::string> keys{"seed", "data.seed", "strategy.seed", "name",   "train.resume",
                                             "log",  "launch",    "backend",       "profile"};
  return keys;
}

struct RunGroup {
  std::vector<ListedRun> runs;  // differ in seeds only; the first one was named by the user
};

// The seeds of a run. Runs with equal seeds (repeated, resumed, or on other ranks) do not show the spread over seeds.
std::string seed_of(const ListedRun& run) {
  const Json config = without_locations(run.config);
  Json seeds = Json::array();
  for (const char* key : {"seed", "data.seed", "strategy.seed"}) seeds.push_back(value_of_key(config, key));
  return seeds.dump();
}

size_t seeds_in(const RunGroup& group) {
  std::set<std::string> seeds;
  for (const ListedRun& run : group.runs) seeds.insert(seed_of(run));
  return seeds.size();
}

bool is_finished(const ListedRun& run) { return run.status == "done"; }

// An unfinished run has values of another step, so it is in no group with others.
bool same_but_seed(const ListedRun& a, const ListedRun& b) {
  return is_finished(a) && is_finished(b) && first_difference(a.config, b.config, seed_keys()).empty();
}

// Adds finished runs of the same folders that differ only in their seeds.
void add_runs_with_other_seeds(std::vector<RunGroup>& groups) {
  std::set<std::string> known, folders;
  for (const RunGroup& group : groups)
    for (const ListedRun& run : group.runs) {
      known.insert(absolute_path(run.folder));
      const std::string parent = fs::path(run.folder).lexically_normal().parent_path().string();
      folders.insert(parent.empty() ? "." : parent);
    }
  for (const std::string& folder : folders)
    for (const ListedRun& run : listed_runs(folder)) {
      if (run.farm || !is_finished(run) || !known.insert(absolute_path(run.folder)).second) continue;
      for (RunGroup& group : groups)
        if (same_but_seed(group.runs.front(), run)) {
          const bool known_seed = std::any_of(group.runs.begin(), group.runs.end(),
                                              [&](const ListedRun& other) { return seed_of(other) == seed_of(run); });
          if (!known_seed) group.runs.push_back(run);
          break;
        }
    }
}

std::vector<ListedRun> named_runs(const std::vector<std::string>& folders) {
  std::vector<ListedRun> runs;
  std::set<std::string> known;
  for (std::string folder : folders) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    const std::vector<std::string> pipelines = pipeline_folders(folder);
    for (const std::string& path : pipelines.empty() ? std::vector<std::string>{folder} : pipelines) {
      const std::optional<ListedRun> run = listed_run(path);
      if (!run && pipelines.empty())
        throw Error(Failure::command_line, "convoy compare: ", path,
                    " holds no run; `convoy runs` lists those in runs/");
      if (run && run->status == "unreadable")
        throw Error(Failure::corrupt_data, "convoy compare: ", path, "/summary.json is no summary of convoy");
      if (run && known.insert(absolute_path(path)).second) runs.push_back(*run);
    }
  }
  if (runs.size() < 2)
    throw Error(Failure::command_line, "convoy compare: name at least two different runs, or a farm");
  return runs;
}

std::string value_text(const Json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<double> values_of(const RunGroup& group, const std::string& metric, const char* which) {
  std::vector<double> values;
  std::set<std::string> seeds;  // one run of each
  for (const ListedRun& run : group.runs)
    if (const double value = value_of_metric(run, metric, which); std::isfinite(value))
      if (seeds.insert(seed_of(run)).second) values.push_back(value);
  return values;
}

std::string spread_text(const SpreadTest& test) {
  if (std::isnan(test.limit)) return "spread unknown";
  return test.exceeds() ? "exceeds the spread" : "within the spread";
}

// The metrics that any run has, in their order.
std::vector<std::string> metrics_of(const std::vector<RunGroup>& groups) {
  std::vector<std::string> names;
  for (const RunGroup& group : groups)
    for (const auto& [name, values] : group.runs.front().metrics.items())
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

std::string group_name(const RunGroup& group) {
  const size_t seeds = seeds_in(group);
  return seeds == 1 ? group.runs.front().folder : str(group.runs.front().folder, " (", seeds, " seeds)");
}

struct ComparedMetric {
  std::string name;
  std::vector<std::vector<double>> values;       // by group, then by run
  std::vector<std::optional<SpreadTest>> tests;  // by group: its test against the first group; the first has none
};

ComparedMetric compared_metric(const std::vector<RunGroup>& groups, const std::string& metric, const char* which) {
  ComparedMetric result{metric, {}, {}};
  for (const RunGroup& group : groups) result.values.push_back(values_of(group, metric, which));
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == 0 || result.values[0].empty() || result.values[i].empty()) {
      result.tests.emplace_back();
      continue;
    }
    std::vector<std::vector<double>> others;
    for (size_t j = 1; j < groups.size(); ++j)
      if (j != i) others.push_back(result.values[j]);
    result.tests.push_back(spread_test(result.values[0], result.values[i], others));
  }
  return result;
}

// Runs that differ in their seeds only: the spread itself.
void print_seeds(const RunGroup& group, const std::vector<ComparedMetric>& metrics, const char* which,
                 std::ostream& out) {
  std::vector<std::vector<std::string>> lines{{str("metric (", which, ")")}};
  std::vector<size_t> right;
  for (const ListedRun& run : group.runs) lines.front().push_back(run.folder);
  lines.front().insert(lines.front().end(), {"mean", "deviation"});
  for (size_t column = 1; column < lines.front().size(); ++column) right.push_back(column);
  for (const ComparedMetric& metric : metrics) {
    std::vector<std::string> line{metric.name};
    for (const ListedRun& run : group.runs) line.push_back(number_or_dash(value_of_metric(run, metric.name, which)));
    const std::vector<double>& values = metric.values.front();
    line.push_back(number_or_dash(mean_of(values)));
    line.push_back(number_or_dash(deviation_of({values})));
    lines.push_back(line);
  }
  out << text_table(lines, right)
      << (seeds_in(group) > 1 ? "The runs differ in their seeds only.\n"
                              : "The runs have equal settings and seeds, so this is no spread over "
                                "seeds: train one again with --set seed=2.\n");
}

void print_comparison(const std::vector<ListedRun>& runs, const std::vector<RunGroup>& groups,
                      const std::vector<ComparedMetric>& metrics, const char* which, std::ostream& out) {
  std::vector<std::vector<std::string>> keys{{"key"}};
  for (const ListedRun& run : runs) keys.front().push_back(run.folder);
  for (const auto& [key, values] : differing_keys(runs)) {
    keys.push_back({key});
    for (const Json& value : values) keys.back().push_back(value_text(value));
  }
  out << (keys.size() == 1 ? "the configurations are equal\n" : text_table(keys)) << '\n';

  std::vector<std::vector<std::string>> lines{{str("metric (", which, ")")}};
  std::vector<size_t> right;
  if (groups.size() == 1) return print_seeds(groups.front(), metrics, which, out);
  for (const ListedRun& run : runs)
    if (!is_finished(run))
      out << run.folder << " has status " << run.status
          << (run.step < 0 ? std::string() : str(" after step ", run.step)) << ": its values are those so far\n";
  for (size_t i = 0; i < groups.size(); ++i) {
    right.push_back(lines.front().size());
    lines.front().push_back(group_name(groups[i]));
    if (i == 0) continue;
    right.push_back(lines.front().size());
    lines.front().insert(lines.front().end(), {"difference", ""});
  }
  double deviation_seen = std::nan("");
  for (const ComparedMetric& metric : metrics) {
    std::vector<std::string> line{metric.name};
    for (size_t i = 0; i < groups.size(); ++i) {
      line.push_back(number_or_dash(mean_of(metric.values[i])));
      if (i == 0) continue;
      const std::optional<SpreadTest>& test = metric.tests[i];
      line.push_back(test ? formatted("%+.4g", test->difference) : "-");
      line.push_back(!test                     ? ""
                     : std::isnan(test->limit) ? spread_text(*test)
                                               : str(spread_text(*test), " (", formatted("%.2g", test->limit), ")"));
      if (test && std::isfinite(test->deviation)) deviation_seen = test->deviation;
    }
    lines.push_back(line);
  }
  out << text_table(lines, right);
  if (std::isnan(deviation_seen))
    out << "The spread over seeds is unknown: train a run again with other seeds, as in --set seed=2, and compare "
           "again: convoy finds runs of the same folder that differ only in their seeds.\n";
  else
    out << "In brackets: differences below this are within the spread over seeds (Student's test, 95 %).\n";
}

Json comparison_json(const std::vector<ListedRun>& runs, const std::vector<RunGroup>& groups,
                     const std::vector<ComparedMetric>& metrics, const char* which) {
  Json json{{"value", which},         {"runs", Json::array()},   {"status", Json::array()},
            {"keys", Json::object()}, {"groups", Json::array()}, {"metrics", Json::object()}};
  for (const ListedRun& run : runs) {
    json["runs"].push_back(run.folder);
    json["status"].push_back(run.status);
  }
  for (const auto& [key, values] : differing_keys(runs)) json["keys"][key] = values;
  for (const RunGroup& group : groups) {
    Json folders = Json::array();
    for (const ListedRun& run : group.runs) folders.push_back(run.folder);
    json["groups"].push_back(folders);
  }
  for (const ComparedMetric& metric : metrics) {
    Json entries = Json::array();
    for (size_t i = 0; i < groups.size(); ++i) {
      Json entry{{"mean", number_or_null(mean_of(metric.values[i]))}, {"seeds", metric.values[i].size()}};
      if (const std::optional<SpreadTest>& test = metric.tests[i])
        entry.update({{"difference", test->difference},
                      {"deviation", number_or_null(test->deviation)},
                      {"limit", number_or_null(test->limit)},
                      {"exceeds_spread", std::isnan(test->limit) ? Json() : Json(test->exceeds())}});
      entries.push_back(entry);
    }
    json["metrics"][metric.name] = entries;
  }
  return json;
}

}  // namespace

int compare_command(const CompareArguments& arguments, std::ostream& out) {
  const std::vector<ListedRun> runs = named_runs(arguments.runs);
  std::vector<RunGroup> groups;
  for (const ListedRun& run : runs) {
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const RunGroup& group) { return same_but_seed(group.runs.front(), run); });
    if (same == groups.end())
      groups.push_back({{run}});
    else
      same->runs.push_back(run);
  }
  if (groups.size() > 1) add_runs_with_other_seeds(groups);
  const char* const which = arguments.best ? "best" : "last";
  std::vector<ComparedMetric> metrics;
  for (const std::string& metric : metrics_of(groups)) metrics.push_back(compared_metric(groups, metric, which));
  if (arguments.json)
    out << json_text(comparison_json(runs, groups, metrics, which)) << '\n';
  else
    print_comparison(runs, groups, metrics, which, out);
  return exit_code::done;
}

}  // namespace convoy
