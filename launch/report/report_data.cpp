#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/config/run_config.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"
#include "launch/report/report.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

constexpr double bytes_of_point = 14;  // text of a step and a value
constexpr size_t fewest_points = 30;

struct ReportSources {
  std::vector<ReportedRun> runs;
  std::vector<ReportedFarm> farms;
  std::vector<std::string> notes;
};

std::string report_folder_text(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

// Another user's run, or a file without read permission.
void refuse_unreadable(const std::string& folder) {
  const std::string file = folder + "/summary.json", why = why_unreadable(file);
  if (why.empty()) return;
  const bool enters = access(folder.c_str(), X_OK) == 0;
  throw Error(Failure::io, "convoy report: ", enters ? file : folder, " cannot be read: ", why,
              "; run convoy as its owner, or type as that user: chmod -R a+rX ", shell_word(folder));
}

[[noreturn]] void refuse_folder(const std::string& folder) {
  std::error_code none;
  if (!std::filesystem::exists(folder, none))
    throw Error(Failure::command_line, "convoy report: ", folder,
                ": no such folder; `convoy runs` lists the runs in runs/");
  if (!std::filesystem::is_directory(folder, none))
    throw Error(Failure::command_line, "convoy report: ", folder,
                ": is no folder; name a run folder, such as runs/NAME");
  std::vector<std::string> inside;
  for (const std::string& name : names_in(folder))
    if (std::filesystem::exists(folder + "/" + name + "/summary.json", none))
      inside.push_back(shell_word(folder + "/" + name));
  const bool many = inside.size() > 8;
  if (many) inside.resize(8);
  if (!inside.empty())
    throw Error(Failure::command_line, "convoy report: ", folder,
                " has runs, but is none itself; name them: convoy report ", join(inside, " "), many ? " …" : "");
  throw Error(Failure::command_line, "convoy report: ", folder,
              " holds no run (no summary.json); `convoy runs` lists the runs in runs/");
}

ListedRun run_to_report(const std::string& folder) {
  refuse_unreadable(folder);
  std::optional<ListedRun> run = listed_run(folder);
  if (!run) refuse_folder(folder);
  if (run->status == "unreadable")
    throw Error(Failure::corrupt_data, "convoy report: ", folder,
                "/summary.json is damaged, or no summary of convoy; the same `convoy run` writes it again, or leave "
                "this run out");
  run->name = std::filesystem::path(absolute_path(folder)).filename().string();
  return *run;
}

// Takes the pipeline's result from the farm. The farm may have ended a run whose own summary has no failure, such as a
// run above its limits.
void take_outcome(const Json& row, ReportedRun& run) {
  const std::string status = text_in(row, "status"), cause = text_in(row, "cause");
  const bool ended_badly = status == "failed" || status == "stopped";
  if (!ended_badly && status != "done" && status != "lost" && status != "paused" && status != "waiting") return;
  run.listed.status = status;
  if (!ended_badly) run.summary.erase("failure");  // the request to stop is no failure
  if (!ended_badly || cause.empty()) return;
  if (const auto failure = run.summary.find("failure"); failure == run.summary.end() || !failure->is_object())
    run.summary["failure"] = {{"cause", cause}, {"message", text_in(row, "message", cause)}};
}

// Keeps only what the table shows: a page with the curves of hundreds of runs would be too large.
void drop_details(ReportedRun& run) {
  run.records = {};
  run.memory.clear();
  run.cpu.clear();
  for (const char* key : {"placement", "topology", "breakdown", "attempts", "membership", "ranks"})
    run.summary.erase(key);
}

// Adds the runs of a farm, best first, up to limits.curves_of runs with curves.
void add_farm(ListedRun listed, const ReportLimits& limits, ReportSources& sources) {
  ReportedFarm farm = reported_farm(std::move(listed), limits);
  size_t left_out = 0;
  for (Json& row : farm.leaderboard["rows"]) {
    const std::string folder = farm.listed.folder + "/" + text_in(row, "folder");
    std::optional<ListedRun> run = listed_run(folder);
    const std::string why = why_unreadable(folder + "/summary.json");
    if (!why.empty() || (run && run->status == "unreadable"))
      sources.notes.push_back(str(folder, "/summary.json ",
                                  why.empty() ? "is damaged, or no summary of convoy" : "cannot be read: " + why,
                                  "; the page lacks this pipeline's curves"));
    if (!run || run->status == "unreadable") continue;
    if (sources.runs.size() >= limits.curves_of) {
      ++left_out;
      continue;
    }
    run->name = text_in(row, "pipeline");
    ReportedRun reported = reported_run(std::move(*run));
    reported.farm = int(sources.farms.size());
    take_outcome(row, reported);
    if (reported.memory.empty())
      if (const Curve* memory = find_curve(farm.memory, reported.listed.name))
        reported.memory.emplace_back("pipeline", downsampled(*memory, 200));
    if (reported.cpu.empty())
      if (const Curve* cpu = find_curve(farm.cpu, reported.listed.name))
        reported.cpu.emplace_back("pipeline", downsampled(*cpu, 200));
    row["run"] = sources.runs.size();
    sources.runs.push_back(std::move(reported));
  }
  if (left_out > 0)
    sources.notes.push_back(str("The page has curves of the best ", limits.curves_of, " runs; ", left_out,
                                " pipelines of ", farm.listed.name, " are only in its leaderboard."));
  if (farm.leaderboard["rows"].size() > limits.listed)
    sources.notes.push_back(str("The leaderboard of ", farm.listed.name, " shows ", limits.listed, " of ",
                                farm.leaderboard["rows"].size(), " pipelines; ", farm.listed.folder,
                                "/leaderboard.csv has all."));
  sources.farms.push_back(std::move(farm));
}

ReportSources read_sources(const std::vector<std::string>& folders, const ReportLimits& limits) {
  ReportSources sources;
  std::set<std::string> known;
  std::vector<ListedRun> listed;
  for (const std::string& named : folders) {
    const std::string folder = report_folder_text(named);
    if (known.insert(absolute_path(folder)).second) listed.push_back(run_to_report(folder));
  }
  size_t without_curves = 0;
  for (ListedRun& run : listed) {
    if (run.farm || read_summary(run.folder).contains("pipelines")) {
      add_farm(std::move(run), limits, sources);
      continue;
    }
    const bool full = sources.runs.size() >= limits.curves_of;
    sources.runs.push_back(reported_run(std::move(run)));
    if (!full) continue;
    drop_details(sources.runs.back());
    ++without_curves;
  }
  if (without_curves > 0)
    sources.notes.push_back(str("The page has curves of the first ", limits.curves_of, " runs; ", without_curves,
                                " are only in its table. Name fewer runs to see theirs."));
  return sources;
}

// Names of the runs: with the farm if the page has more than that farm, or with the folder if names are equal.
std::vector<std::string> labels_of(const ReportSources& sources) {
  std::map<std::string, int> users;
  for (const ReportedRun& run : sources.runs) ++users[run.listed.name];
  std::vector<std::string> labels;
  for (const ReportedRun& run : sources.runs) {
    const bool own_page = sources.farms.size() == 1 && run.farm == 0;
    std::string label = run.listed.name;
    if (run.farm >= 0 && (!own_page || users[label] > 1))
      label = sources.farms[size_t(run.farm)].listed.name + "/" + label;
    else if (run.farm < 0 && users[label] > 1)
      label = run.listed.folder;
    labels.push_back(label);
  }
  return labels;
}

Json differences_json(const ReportSources& sources, const ReportLimits& limits) {
  std::vector<ListedRun> runs;
  Json indices = Json::array();
  for (size_t i = 0; i < sources.runs.size() && runs.size() < limits.compared; ++i) {
    if (sources.runs[i].listed.config.empty()) continue;
    runs.push_back(sources.runs[i].listed);
    indices.push_back(i);
  }
  Json keys = Json::array();
  if (runs.size() > 1)
    for (const auto& [key, values] : differing_keys(runs)) keys.push_back({{"key", key}, {"values", values}});
  return {{"runs", indices}, {"keys", keys}};
}

size_t long_curves(const ReportSources& sources) {
  size_t count = 0;
  const auto add = [&](const NamedCurves& curves) {
    for (const auto& [name, curve] : curves) count += curve.x.size() > fewest_points;
  };
  for (const ReportedRun& run : sources.runs)
    for (const NamedCurves* curves : {&run.records.training, &run.records.evaluation, &run.memory, &run.cpu})
      add(*curves);
  return count;
}

std::vector<std::string> notes_of(const ReportSources& sources) {
  constexpr size_t most = 20;
  std::vector<std::string> notes = sources.notes;
  for (const ReportedFarm& farm : sources.farms) notes.insert(notes.end(), farm.notes.begin(), farm.notes.end());
  for (const ReportedRun& run : sources.runs) notes.insert(notes.end(), run.notes.begin(), run.notes.end());
  if (notes.size() <= most) return notes;
  const size_t more = notes.size() - most;
  notes.resize(most);
  notes.push_back(str("and ", more, " more notes"));
  return notes;
}

Json composed(const ReportSources& sources, const ReportLimits& limits, size_t points) {
  const std::vector<std::string> labels = labels_of(sources);
  Json data{{"version", version},
            {"written", unix_seconds()},
            {"sentences", Json::array()},
            {"runs", Json::array()},
            {"farms", Json::array()}};
  for (size_t i = 0; i < sources.runs.size(); ++i) data["runs"].push_back(to_json(sources.runs[i], labels[i], points));
  for (const ReportedFarm& farm : sources.farms) data["farms"].push_back(to_json(farm, limits));
  data["differences"] = differences_json(sources, limits);
  data["notes"] = notes_of(sources);
  data["sentences"] = report_sentences(data);
  return data;
}

size_t first_points(const ReportSources& sources, const ReportLimits& limits) {
  const double room = double(limits.bytes) / bytes_of_point / double(std::max<size_t>(1, long_curves(sources)));
  return size_t(std::clamp(room, double(fewest_points), double(limits.points)));
}

}  // namespace

std::string why_unreadable(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  return file.valid() || errno == ENOENT || errno == ENOTDIR ? "" : error_text(errno);
}

void note_unreadable(const std::string& path, const char* lacks, std::vector<std::string>& notes) {
  if (const std::string why = why_unreadable(path); !why.empty())
    notes.push_back(str(path, " cannot be read: ", why, "; the page has no ", lacks));
}

Json report_data(const std::vector<std::string>& folders, const ReportLimits& limits) {
  const ReportSources sources = read_sources(folders, limits);
  return composed(sources, limits, first_points(sources, limits));
}

ReportText report_text(const std::vector<std::string>& folders, const ReportLimits& limits) {
  ReportLimits now = limits;
  ReportSources sources = read_sources(folders, now);
  for (size_t points = first_points(sources, now);; points = points * 3 / 4) {
    std::string text = composed(sources, now, points).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() <= limits.bytes || now.curves_of < 2) return {std::move(text), notes_of(sources)};
    if (points > fewest_points) continue;
    // Many runs: fewer of them get curves.
    now.curves_of /= 2;
    now.listed /= 2;
    now.events /= 2;
    sources = read_sources(folders, now);
    points = first_points(sources, now) * 4 / 3;
  }
}

}  // namespace convoy
