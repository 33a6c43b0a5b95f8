#include "launch/job/live_files.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds write_interval{900};  // ranks post progress several times a second

std::string name_of_folder(const std::string& folder) { return folder.substr(folder.rfind('/') + 1); }

// The path of log.prometheus for this run.
std::string path_for(std::string path, const std::string& run) {
  if (path.empty()) return "";
  constexpr char placeholder[] = "{name}";
  for (size_t at = path.find(placeholder); at != std::string::npos; at = path.find(placeholder, at + run.size()))
    path.replace(at, sizeof placeholder - 1, run);
  return absolute_path(path);
}

// --- Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats ---

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : value) text += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

class Exposition {
 public:
  void family(const std::string& name, const char* type, const char* help) {
    name_ = name;
    text_ += str("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void sample(const Labels& labels, double value) {
    std::vector<std::string> texts;
    for (const auto& [label, content] : labels) texts.push_back(str(label, "=\"", escaped(content), "\""));
    text_ += str(name_, "{", join(texts, ","), "} ", number_text(value), "\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

}  // namespace

std::string prometheus_text(const std::string& run, const Json& progress, const Json& evaluated,
                            const std::map<int, Json>& resources, int exit_code) {
  Exposition out;
  const Labels job{{"run", run}};
  out.family("convoy_up", "gauge", "1 while the job runs, 0 after its end.");
  out.sample(job, exit_code < 0 ? 1 : 0);
  if (exit_code >= 0) {
    out.family("convoy_exit_code", "gauge", "Exit code of the job.");
    out.sample(job, exit_code);
  }
  struct Field {
    const char *key, *name, *help;
  };
  // Rank 0 counts for all ranks.
  for (const Field& field : {Field{"step", "convoy_step", "Completed steps."},
                             {"steps", "convoy_steps", "Steps of the whole training."},
                             {"epoch", "convoy_epoch", "Epochs begun."},
                             {"seconds", "convoy_training_seconds", "Seconds of training."},
                             {"samples_per_second", "convoy_samples_per_second", "Samples per second of all ranks."},
                             {"remaining_seconds", "convoy_remaining_seconds", "Expected seconds to the end."},
                             {"loss", "convoy_loss", "Last logged loss of training."}}) {
    const auto found = progress.find(field.key);
    if (found == progress.end()) continue;
    out.family(field.name, "gauge", field.help);
    out.sample(job, read_number(*found));
  }
  if (const Json metrics = evaluated.value("metrics", Json::object()); !metrics.empty()) {
    out.family("convoy_metric", "gauge", "Metric of the last evaluation.");
    for (const auto& [name, value] : metrics.items()) out.sample({{"run", run}, {"metric", name}}, read_number(value));
  }
  if (!resources.empty()) {
    out.family("convoy_rank_memory_bytes", "gauge", "Resident memory of a rank.");
    for (const auto& [rank, report] : resources)
      if (report.contains("memory_bytes"))
        out.sample({{"run", run}, {"rank", std::to_string(rank)}}, number_in(report, "memory_bytes", 0));
    out.family("convoy_rank_cpu_seconds_total", "counter", "CPU time of a rank.");
    for (const auto& [rank, report] : resources)
      if (report.contains("cpu_s"))
        out.sample({{"run", run}, {"rank", std::to_string(rank)}}, number_in(report, "cpu_s", 0));
  }
  if (!resources.empty()) {
    out.family(
        "convoy_rank_seconds_total", "counter",
        "Wall time of a rank by part. Communication has the waits for other ranks: ranks compare them at the end.");
    for (const auto& [rank, report] : resources) {
      Json times = report.value("times", Json::object());
      const double waits = number_in(times, "waiting", 0);
      times.erase("waiting");
      for (const auto& [part, seconds] : times.items())
        out.sample({{"run", run}, {"rank", std::to_string(rank)}, {"part", part}},
                   read_number(seconds) + (part == "communication" ? waits : 0));
    }
  }
  return out.text();
}

// --- Files ---

LiveFiles::LiveFiles(std::string folder, const std::string& prometheus, Clock::time_point began, Warn warn)
    : folder_(std::move(folder)),
      run_(name_of_folder(folder_)),
      prometheus_(path_for(prometheus, run_)),
      began_(began),
      warn_(std::move(warn)) {}

// Adds the time before the start of the rank's clock to its part `start_up`, like the summary (take_breakdown). This
// time is measured once for each clock, so that the part never decreases.
void LiveFiles::add_start(int rank, Json& report) {
  const auto times = report.find("times");
  if (times == report.end() || !times->is_object()) return;
  double sum = 0;
  for (const auto& [part, seconds] : times->items()) sum += seconds.is_number() ? seconds.get<double>() : 0;
  const auto [known, is_new] = starts_.try_emplace(rank);
  RankStart& start = known->second;
  if (is_new || sum < start.measured) start.unmeasured = std::max(0.0, seconds_since(began_) - sum);
  start.measured = sum;
  (*times)["start_up"] = number_in(*times, "start_up", 0) + start.unmeasured;
}

std::string LiveFiles::prometheus_text() const {
  return convoy::prometheus_text(run_, progress_, evaluated_, resources_, exit_code_);
}

void LiveFiles::begin() {
  if (prometheus_.empty()) return;
  try {
    write_whole(prometheus_, prometheus_text(), false);
  } catch (const Error& error) {
    throw Error(Failure::output, "log.prometheus: ", error.what(), "; give a file in a folder that you may write");
  }
}

std::string LiveFiles::write_prometheus() {
  if (prometheus_.empty()) return "";
  try {
    write_whole(prometheus_, prometheus_text(), false);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void LiveFiles::progress(const Json& record) {
  if (record.contains("text")) return;
  const auto now = Clock::now();
  progress_ = record;
  add_start(0, progress_);
  if (now - progress_written_ < write_interval) return;
  progress_written_ = now;
  try {
    write_whole(folder_ + "/progress.json", progress_.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n",
                false);
  } catch (const Error&) {
  }
  const std::string failure = write_prometheus();
  if (failure.empty() || warned_) return;
  warned_ = true;
  warn_(
      str("log.prometheus: ", failure, "; the run continues and tries again, and until then the file has old values"));
}

void LiveFiles::evaluated(const Json& record) { evaluated_ = record; }

void LiveFiles::resources(const Json& report) {
  const int rank = report.at("rank").get<int>();
  resources_[rank] = report;
  add_start(rank, resources_[rank]);
  Json line = {{"time_s", seconds_since(began_)}};
  line.update(report);
  line.erase("times");  // summary.json has them
  try {
    const std::string path = folder_ + "/resources.jsonl";
    write_all(open_to_append_lines(path).get(), line.dump() + "\n", path);
  } catch (const Error&) {
  }
}

void LiveFiles::end(int exit_code, const Json& breakdown) {
  exit_code_ = exit_code;
  for (const Json& rank : breakdown.is_object() ? breakdown.value("ranks", Json::array()) : Json::array()) {
    Json times = rank;
    times.erase("rank");
    times.erase("waits_for");
    Json& report = resources_[static_cast<int>(number_in(rank, "rank", 0))];
    if (report.is_null()) report = Json::object();  // a rank of a short run may have sent none
    const double shown = number_in(report.value("times", Json()), "start_up", 0);  // a counter must not decrease
    times["start_up"] = std::max(number_in(times, "start_up", 0), shown);
    report["times"] = times;
  }
  if (!write_prometheus().empty()) {
    const bool removed = unlink(prometheus_.c_str()) == 0 || errno == ENOENT;  // which makes room for the new one
    if (const std::string failure = write_prometheus(); !failure.empty())
      warn_(str("log.prometheus: the end of the run cannot be written: ", failure, "; ",
                removed ? "the file is removed, because it showed the run as running"
                        : "the file still shows the run as running: remove it"));
  }
  unlink((folder_ + "/progress.json").c_str());  // its content is in the summary
}

}  // namespace convoy
