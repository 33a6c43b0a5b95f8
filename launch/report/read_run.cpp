#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/files/run_files.h"
#include "core/rank_state/summary.h"
#include "launch/farm/report/report.h"
#include "launch/report/report.h"

namespace convoy {

namespace {

// --- Farms ---

// Bars from the journal: a pipeline occupies its slot from `started` to its next event.
Json schedule_of(const std::string& folder, bool running, size_t most, double& origin) {
  Json bars = Json::array();
  std::map<std::string, Json> open;
  double last = 0;
  for_each_object(folder + "/journal.jsonl", [&](const Json& event) {
    const double time = number_in(event, "time", std::nan(""));
    const std::string name = text_in(event, "pipeline"), what = text_in(event, "event");
    if (!std::isfinite(time) || name.empty() || what == "priority") return;
    if (std::isnan(origin)) origin = time;
    last = std::max(last, time - origin);
    if (const auto bar = open.find(name); bar != open.end()) {
      bar->second["to"] = six_digits(time - origin);
      bar->second["end"] = what;
      if (const std::string cause = text_in(event, "cause"); !cause.empty()) bar->second["cause"] = cause;
      if (bars.size() < most) bars.push_back(bar->second);
      open.erase(bar);
    }
    if (what == "started")
      open[name] = {{"pipeline", name},
                    {"slot", str(text_in(event, "host"), " slot ", whole_in(event, "slot", 0))},
                    {"attempt", number_in(event, "attempt", 1)},
                    {"from", six_digits(time - origin)}};
  });
  if (running) last = unix_seconds() - origin;
  for (auto& [name, bar] : open) {
    bar["to"] = six_digits(last);
    bar["end"] = "running";
    if (bars.size() < most) bars.push_back(bar);
  }
  return bars;
}

void read_pipeline_resources(const std::string& folder, double origin, ReportedFarm& farm) {
  for_each_object(folder + "/metrics.jsonl", [&](const Json& sample) {
    const std::string name = text_in(sample, "pipeline");
    const double time = number_in(sample, "time", std::nan("")) - origin;
    if (name.empty() || !std::isfinite(time)) return;
    if (const double bytes = number_in(sample, "memory_bytes", -1); bytes >= 0)
      curve_of(farm.memory, name).add(time, bytes);
    if (const double cpu = number_in(sample, "cpu", -1); cpu >= 0) curve_of(farm.cpu, name).add(time, cpu);
  });
}

// Status of a pipeline whose farm runs or was killed. The farm's summary has the status at the farm's start.
std::string present_status(const std::string& at_start, const std::string& event, const std::string& run_status) {
  static const std::map<std::string, std::string> statuses{
      {"queued", "waiting"}, {"preempted", "waiting"}, {"retry", "waiting"}, {"cancelled", "stopped"},
      {"paused", "paused"},  {"lost", "lost"},         {"done", "done"},     {"failed", "failed"}};
  if (const auto status = statuses.find(event); status != statuses.end()) return status->second;
  return run_status.empty() ? at_start : run_status;
}

PipelineResult present_result(const std::string& farm, const Json& pipeline, const JournalRecord& record) {
  PipelineResult result;
  result.name = text_in(pipeline, "name");
  result.folder = text_in(pipeline, "folder");
  result.attempts = std::max(int(whole_in(pipeline, "attempts", 0)), record.starts);
  const std::optional<ListedRun> run = listed_run(farm + "/" + result.folder);
  result.status = present_status(text_in(pipeline, "status"), record.event, run ? run->status : "");
  if (result.status == "lost") result.lost_at = record.lost_at;
  if (!run) return result;
  result.summary = read_summary(run->folder);
  if (result.status == "failed") result.cause = text_in(result.summary.value("failure", Json()), "cause");
  result.summary["metrics"] = run->metrics;  // those so far, if it has not ended
  return result;
}

// The leaderboard of the summary; of a farm that has not written one, from the folders of its pipelines.
Json leaderboard_of(const std::string& folder, const Json& summary) {
  if (const auto found = summary.find("leaderboard");
      found != summary.end() && found->is_object() && found->contains("rows") && (*found)["rows"].is_array())
    return *found;
  std::vector<PipelineResult> results;
  const Json pipelines = summary.value("pipelines", Json::array());
  std::map<std::string, JournalRecord> journal = read_journal(folder);
  for (const Json& pipeline : pipelines)
    if (pipeline.is_object()) results.push_back(present_result(folder, pipeline, journal[text_in(pipeline, "name")]));
  const Json strategy = summary.value("config", Json::object()).value("strategy", Json::object());
  const std::string direction = text_in(strategy, "direction");
  return leaderboard(results, {text_in(strategy, "metric"), direction.empty() ? "auto" : direction});
}

// Copies `stage`, `setting` and `message` from the records of pipelines to the rows of the leaderboard.
void add_stages(const Json& summary, Json& board) {
  std::map<std::string, Json> records;
  for (const Json& pipeline : summary.value("pipelines", Json::array()))
    if (pipeline.is_object()) records[text_in(pipeline, "name")] = pipeline;
  for (Json& row : board["rows"]) {
    const auto record = records.find(text_in(row, "pipeline"));
    if (record == records.end()) continue;
    for (const char* key : {"stage", "setting", "message"})
      if (const auto found = record->second.find(key); found != record->second.end() && !found->is_null())
        row[key] = *found;
  }
}

}  // namespace

ReportedFarm reported_farm(ListedRun listed, const ReportLimits& limits) {
  ReportedFarm farm;
  farm.listed = std::move(listed);
  farm.summary = read_summary(farm.listed.folder);
  farm.leaderboard = leaderboard_of(farm.listed.folder, farm.summary);
  add_stages(farm.summary, farm.leaderboard);
  double origin = std::nan("");
  farm.schedule = schedule_of(farm.listed.folder, farm.listed.status == "running", limits.events, origin);
  if (!std::isnan(origin)) read_pipeline_resources(farm.listed.folder, origin, farm);
  note_unreadable(farm.listed.folder + "/journal.jsonl", "schedule, and no memory and CPU of its pipelines",
                  farm.notes);
  note_unreadable(farm.listed.folder + "/metrics.jsonl", "memory and CPU of its pipelines", farm.notes);
  return farm;
}

Json to_json(const ReportedFarm& farm, const ReportLimits& limits) {
  Json rows = Json::array();
  const Json& all = farm.leaderboard["rows"];
  for (const Json& row : all) {
    if (rows.size() == limits.listed) break;
    rows.push_back(row);
    rows.back().erase("metrics");  // the runs have them
  }
  const double began = number_in(farm.summary, "started", std::nan(""));
  const bool runs = farm.listed.status == "running" && std::isfinite(began);
  const double seconds = runs ? number_in(farm.summary, "train_seconds", 0) + (unix_seconds() - began)
                              : farm_seconds(farm.listed.folder, farm.summary);
  Json json{{"name", farm.listed.name},
            {"folder", farm.listed.folder},
            {"status", farm.listed.status},
            {"pipelines", all.size()},
            {"seconds", seconds},
            {"slots", number_or_null(number_in(farm.summary, "world_size", std::nan("")))},
            {"metric", farm.leaderboard.value("metric", Json())},
            {"direction", farm.leaderboard.value("direction", Json())},
            {"rows", std::move(rows)},
            {"schedule", farm.schedule}};
  if (const auto settings = farm.leaderboard.find("settings"); settings != farm.leaderboard.end())
    json["settings"] = *settings;
  if (const auto failure = farm.summary.find("failure"); failure != farm.summary.end() && failure->is_object())
    json["failure"] = text_in(*failure, "message");
  return json;
}

// --- Runs ---

namespace {

constexpr size_t throughput_intervals = 200;

Json copied_keys(const Json& from, std::initializer_list<const char*> keys) {
  Json copy = Json::object();
  if (!from.is_object()) return copy;
  for (const char* key : keys)
    if (const auto found = from.find(key); found != from.end() && !found->is_null()) copy[key] = *found;
  return copy;
}

// Lines {"time_s", "rank", "memory_bytes", "cpu_s"}: memory, and busy cores between two lines of a rank. A resumed run
// counts its time from 0 again; its curve follows that of the earlier one.
void read_resources(const std::string& path, ReportedRun& run) {
  NamedCurves cpu_seconds;
  std::map<std::string, std::pair<double, double>> clocks;  // by rank: time of the last line, and total of earlier runs
  for_each_object(path, [&](const Json& sample) {
    const double clock = number_in(sample, "time_s", std::nan("")), rank = number_in(sample, "rank", 0);
    if (!std::isfinite(clock)) return;
    const std::string name = str("rank ", int64_t(rank));
    auto& [last, before] = clocks[name];
    if (clock < last) before += last;
    last = clock;
    const double time = before + clock;
    if (const double bytes = number_in(sample, "memory_bytes", -1); bytes >= 0)
      curve_of(run.memory, name).add(time, bytes);
    if (const double seconds = number_in(sample, "cpu_s", -1); seconds >= 0)
      curve_of(cpu_seconds, name).add(time, seconds);
  });
  for (const auto& [name, curve] : cpu_seconds)
    for (size_t i = 1; i < curve.x.size(); ++i) {
      const double time = curve.x[i] - curve.x[i - 1], used = curve.y[i] - curve.y[i - 1];
      if (time > 0 && used >= 0) curve_of(run.cpu, name).add(curve.x[i], used / time);
    }
}

Json curves_json(const NamedCurves& curves, size_t points) {
  Json json = Json::object();
  for (const auto& [name, curve] : curves) json[name] = to_json(curve, points);
  return json;
}

// The name of a component: its key "name", or the value if it is a text.
std::string component_in(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  return found->is_string() ? found->get<std::string>() : text_in(*found, "name");
}

// Files and target of the data: runs on different ones have metrics that must not be compared.
std::string rows_of(const Json& config) {
  const Json data = config.value("data", Json());
  return data.is_object() ? str(text_in(data, "path"), " ", text_in(data, "target")) : "";
}

// progress.json is written about once a second, and may be older than the last record. Then step, rate and time left
// follow from the records.
void take_newest(const RecordedRun& records, Json& json) {
  const Curve& seconds = records.seconds;
  Json& progress = json["progress"];
  const double known = number_in(progress, "step", 0);
  if (seconds.x.empty() || !(seconds.x.back() > known)) return;
  const double step = seconds.x.back(), steps = number_in(progress, "steps", 0);
  json["step"] = progress["step"] = step;
  const double rate = step / seconds.y.back();  // steps a second
  if (!std::isfinite(rate) || rate <= 0) return;
  if (records.samples_per_step > 0) progress["samples_per_second"] = rate * records.samples_per_step;
  if (steps >= step) progress["remaining_seconds"] = (steps - step) / rate;
}

Json ranks_json(const Json& summary) {
  Json ranks = Json::array();
  const auto found = summary.find("ranks");
  if (found == summary.end() || !found->is_array()) return ranks;
  for (const Json& rank : *found)
    ranks.push_back(copied_keys(rank, {"rank", "host", "device", "peak_resident_bytes", "peak_tensor_bytes",
                                       "cpu_efficiency", "bytes_sent_per_step"}));
  return ranks;
}

}  // namespace

ReportedRun reported_run(ListedRun listed) {
  ReportedRun run;
  run.listed = std::move(listed);
  run.summary = read_summary(run.listed.folder);
  run.records = read_records(run.listed.folder + "/metrics.jsonl");
  read_resources(run.listed.folder + "/resources.jsonl", run);
  note_unreadable(run.listed.folder + "/metrics.jsonl", "curves of its metrics", run.notes);
  note_unreadable(run.listed.folder + "/resources.jsonl", "curves of its memory and CPU", run.notes);
  if (const int64_t damaged = run.records.damaged; damaged > 0)
    run.notes.push_back(str(run.listed.folder,
                            "/metrics.jsonl: ", counted(damaged, "line is no record", "lines are no records"),
                            "; something else has changed the file, and the curves lack these"));
  const double samples = number_in(run.summary, "samples", 0), steps = number_in(run.summary, "steps", 0);
  if (samples > 0 && steps > 0) run.records.samples_per_step = samples / steps;
  // The page draws at most this number of points of a curve.
  for (NamedCurves* curves : {&run.memory, &run.cpu})
    for (auto& [name, curve] : *curves) curve = downsampled(curve, throughput_intervals);
  return run;
}

Json to_json(const ReportedRun& run, const std::string& label, size_t points) {
  const Json& summary = run.summary;
  const Json& config = run.listed.config;
  Json json{{"name", label},
            {"folder", run.listed.folder},
            {"status", run.listed.status},
            {"strategy", run.listed.strategy},
            {"model", component_in(config, "model")},
            {"data", component_in(config, "data")},
            {"rows_of", rows_of(config)},
            {"step", run.listed.step},
            {"main_metric", main_metric(run.listed, "")},
            {"metrics", run.listed.metrics},
            {"samples_per_step", run.records.samples_per_step}};
  json.update(
      copied_keys(summary, {"backend", "world_size", "parameters", "epochs", "steps", "samples", "train_seconds",
                            "samples_per_second", "startup_seconds", "evaluate_seconds", "exit_code", "attempt",
                            "attempts", "membership", "placement", "topology", "breakdown"}));
  if (const auto failure = summary.find("failure"); failure != summary.end() && failure->is_object())
    json["failure"] = copied_keys(*failure, {"rank", "step", "signal", "cause", "message", "host"});
  json["ranks"] = ranks_json(summary);
  if (run.farm >= 0) json["farm"] = run.farm;
  const Json progress = parsed_json(read_file_if_any(run.listed.folder + "/progress.json"));
  if (run.listed.status == "running" && progress.is_object()) {
    json["progress"] = copied_keys(progress, {"step", "steps", "samples_per_second", "remaining_seconds", "loss"});
    take_newest(run.records, json);
  }

  json["seconds"] = to_json(run.records.seconds, std::min(points, throughput_intervals));
  json["training"] = curves_json(run.records.training, points);
  const Curve rate = throughput(run.records.seconds, run.records.samples_per_step, throughput_intervals);
  if (!rate.x.empty()) json["training"]["samples_per_second"] = to_json(rate, points);
  json["evaluation"] = curves_json(run.records.evaluation, points);
  json["members"] = Json::object();
  for (const auto& [name, curves] : run.records.members)
    for (const Curve& curve : curves)
      json["members"][name].push_back(to_json(curve, std::max<size_t>(20, points / curves.size())));
  json["memory"] = curves_json(run.memory, points);
  json["cpu"] = curves_json(run.cpu, points);
  if (run.records.damaged > 0) json["damaged_lines"] = run.records.damaged;
  return json;
}

}  // namespace convoy
