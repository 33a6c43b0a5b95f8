#include "launch/trial.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "launch/commands/run.h"
#include "launch/exit_codes.h"
#include "launch/session.h"
#include "launch/summary.h"
#include "strategies/parts/members/catalogue.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr double measured_seconds = 0.5;  // of each way; starting its ranks and making data and model comes before
constexpr double trial_limit = 60;        // for all: a way that has not begun by then is left out

// What makes two ways one: where each rank runs, and who shares a process. A rank by itself exchanges nothing.
Json layout_of(const Job& job) {
  const Json all = to_json(job);
  Json layout = {{"ranks", all.at("ranks")}, {"processes", all.at("processes")}};
  if (job.ranks.size() > 1) layout["backend"] = job.backend;
  return layout;
}

std::string milliseconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  return text;
}

std::string shape_text(const Job& job) {
  const size_t ranks = job.ranks.size(), processes = job.processes.size();
  return str(ranks, ranks == 1 ? " rank in " : " ranks in ", processes, processes == 1 ? " process" : " processes");
}

// "stacked 3.1 ms a step, threads 2 ms; processes not measured: …".
std::string measured_text(const std::vector<TriedWay>& ways) {
  std::vector<std::string> measured, left_out;
  for (const TriedWay& way : ways) {
    if (way.seconds >= 0)
      measured.push_back(str(way.name, " ", milliseconds_text(way.seconds), " a step"));
    else if (!way.left_out.empty())
      left_out.push_back(str(way.name, " not measured: ", way.left_out));
  }
  if (!measured.empty()) left_out.insert(left_out.begin(), join(measured, ", "));
  return join(left_out, "; ");
}

std::string said(const std::string& taken, const std::string& because) {
  return str(ways_key, ": auto takes ", taken, ": ", because);
}

fs::path choice_file(const std::string& folder) { return fs::path(folder) / "ways.json"; }

// As this folder's run took it; null where there is none that can be read.
Json kept_choice(const std::string& folder) {
  std::ifstream file(choice_file(folder));
  const Json choice = Json::parse(file, nullptr, false);
  return choice.is_object() && choice.value("taken", Json()).is_string() ? choice : Json();
}

// What this folder's run took before, where that is possible still.
const TriedWay* taken_before(const std::string& folder, const std::vector<TriedWay>& ways) {
  const Json choice = kept_choice(folder);
  if (choice.is_null()) return nullptr;
  for (const TriedWay& way : ways)
    if (way.placed && way.name == choice["taken"].get<std::string>()) return &way;
  return nullptr;
}

// Of the same configuration, without what is of the whole run alone.
PreparedRun trial_run(const PreparedRun& run, const std::string& folder) {
  PreparedRun trial = run;
  trial.arguments.output = folder;
  trial.arguments.faults.clear();
  trial.arguments.bench = {{"trial", {{"seconds", measured_seconds}}}};
  trial.quiet = true;
  trial.config.resolved["train"]["resume"] = "never";
  trial.config.resolved["launch"]["max_restarts"] = 0;
  trial.config.resolved["log"]["level"] = "warning";
  trial.config = RunConfig::from_resolved(trial.config.resolved);
  return trial;
}

// Its seconds, or why there are none. True: the command was asked to stop.
bool try_way(EventLoop& loop, const PreparedRun& trial, TriedWay& way) {
  Placed placed = *way.placed;
  for (const char* section : {"train", "launch", "log"}) placed.job.config[section] = trial.config.resolved[section];
  const int code = start_alone(loop, trial, placed);
  if (code == exit_code::stopped) return true;
  const Json summary = read_summary(trial.arguments.output);
  if (code == exit_code::done && summary.contains("seconds_per_step")) {
    way.seconds = summary["seconds_per_step"].get<double>();
    return false;
  }
  const Json failure = summary.value("failure", Json());
  way.left_out = str("its trial ended with exit ", code, ": ",
                     failure.is_object() ? failure.value("message", "no cause was told") : "no cause was told");
  return false;
}

bool measure_ways(EventLoop& loop, const PreparedRun& run, const std::string& folder, std::vector<TriedWay>& ways) {
  const auto began = std::chrono::steady_clock::now();
  for (TriedWay& way : ways) {
    if (!way.placed) continue;
    if (seconds_since(began) > trial_limit) {
      way.left_out = str("the others' trials took more than ", trial_limit, " s");
      continue;
    }
    if (try_way(loop, trial_run(run, str(folder, "/", way.name)), way)) return true;
  }
  return false;
}

void take(const Placed& way, const std::string& note, Placed& placed) {
  placed = way;
  placed.warnings.push_back(note);
}

// Of two ways that are the same here, the one that is called what it is.
void leave_one(TriedWay& one, TriedWay& other) {
  const bool keeps_other = way_of(other.placed->job) == other.name;
  TriedWay &kept = keeps_other ? other : one, &dropped = keeps_other ? one : other;
  dropped.left_out = str("it is ", shape_text(kept.placed->job), " here, as ", kept.name, " is");
  dropped.placed.reset();
}

}  // namespace

std::vector<TriedWay> planned_ways(const PreparedRun& run) {
  std::vector<TriedWay> ways;
  std::vector<Json> layouts;
  for (const Way& one : ways_of(run.config)) {
    TriedWay way{one.name, std::nullopt, "", -1};
    PreparedRun planned = run;
    planned.config.resolved["strategy"] = one.section;
    planned.config = RunConfig::from_resolved(planned.config.resolved);
    try {
      way.placed = placed_here(planned);
    } catch (const ConfigError& error) {
      way.left_out = error.what();
    }
    layouts.push_back(way.placed ? layout_of(way.placed->job) : Json());
    for (size_t other = 0; way.placed && other < ways.size(); ++other)
      if (ways[other].placed && layouts[other] == layouts.back()) leave_one(ways[other], way);
    // Ranks go on choosing what is left to each of them.
    if (way.placed) way.placed->job.config["strategy"] = run.config.resolved["strategy"];
    ways.push_back(std::move(way));
  }
  return ways;
}

int fastest_of(const std::vector<TriedWay>& ways) {
  int fastest = -1;
  for (size_t way = 0; way < ways.size(); ++way)
    if (ways[way].seconds >= 0 && (fastest < 0 || ways[way].seconds < ways[static_cast<size_t>(fastest)].seconds))
      fastest = static_cast<int>(way);
  return fastest;
}

Json choice_json(const std::vector<TriedWay>& ways, const std::string& taken, const std::string& because) {
  Json tried = Json::array();
  for (const TriedWay& way : ways) {
    Json one = {{"way", way.name}};
    if (way.placed) {
      one["ranks"] = way.placed->job.ranks.size();
      one["processes"] = way.placed->job.processes.size();
    }
    if (way.seconds >= 0)
      one["seconds_per_step"] = way.seconds;
    else
      one["left_out"] = way.left_out;
    tried.push_back(one);
  }
  return {{"taken", taken}, {"because", because}, {"tried", tried}};
}

std::optional<int> settle_way(EventLoop& loop, const PreparedRun& run, const std::string& folder, Placed& placed) {
  const std::string trials = folder + "/.trial";
  std::error_code none;
  fs::remove_all(trials, none);  // what a killed one left
  const bool trains = run.snapshots.is_null() && run.arguments.bench.is_null();
  if (!trains || ways_of(run.config).empty()) return std::nullopt;
  std::vector<TriedWay> ways = planned_ways(run);
  if (const TriedWay* before = taken_before(folder, ways)) {
    take(*before->placed, said(before->name, "this run has begun so"), placed);
    return std::nullopt;
  }
  std::vector<std::string> possible;
  for (const TriedWay& way : ways)
    if (way.placed) possible.push_back(way.name);
  if (possible.empty()) return std::nullopt;  // as it was planned
  std::string taken = possible.front(), because;
  if (possible.size() > 1) {
    std::cerr << "convoy: trying a few steps of each way: " << join(possible, ", ") << std::endl;
    const bool stopped = measure_ways(loop, run, trials, ways);
    fs::remove_all(trials, none);
    if (stopped) {
      std::cerr
          << "convoy: asked to stop while ways were tried: nothing was trained yet, the same command begins anew\n";
      return exit_code::stopped;
    }
    const int fastest = fastest_of(ways);
    taken = fastest < 0 ? way_of(placed.job) : ways[static_cast<size_t>(fastest)].name;
    because = fastest < 0 ? "nothing could be measured" : "the fastest";
  } else {
    because = "the only way here, so that nothing was measured";
  }
  const Json choice = choice_json(ways, taken, because);
  const std::string measured = measured_text(ways);
  const std::string note = said(taken, str(because, measured.empty() ? "" : "; ", measured));
  Placed chosen = placed;  // as it was planned, where no way could be measured
  for (const TriedWay& way : ways)
    if (way.placed && way.name == taken) chosen = *way.placed;
  take(chosen, note, placed);
  write_whole(choice_file(folder).string(), choice.dump(2) + "\n", false);
  return std::nullopt;
}

Json choice_of(const PreparedRun& run, const std::string& folder, const Job& job) {
  if (ways_of(run.config).empty()) return nullptr;
  const Json kept = kept_choice(folder);
  if (kept.is_object() && kept["taken"] == way_of(job)) return kept;
  const std::string why = run.as.launcher != Launcher::none ? str("ranks were started by ", name_of(run.as.launcher))
                          : job.backend == "mpi"            ? "ranks are started by mpirun"
                          : !run.arguments.hosts.empty()    ? "ranks are on the hosts of --hosts"
                                                            : "this is no training";
  return choice_json({}, way_of(job), "nothing was measured: " + why);
}

}  // namespace convoy
