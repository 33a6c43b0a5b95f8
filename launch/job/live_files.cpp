#include "launch/job/live_files.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/summary.h"

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

// Values of JSON that are no numbers are text: "nan", "inf", "-inf".
double value_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  return text == "inf" ? INFINITY : text == "-inf" ? -INFINITY : NAN;
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
    out.sample(job, value_of(*found));
  }
  if (const Json metrics = evaluated.value("metrics", Json::object()); !metrics.empty()) {
    out.family("convoy_metric", "gauge", "Metric of the last evaluation.");
    for (const auto& [name, value] : metrics.items()) out.sample({{"run", run}, {"metric", name}}, value_of(value));
  }
  if (!resources.empty()) {
    out.family("convoy_rank_memory_bytes", "gauge", "Resident memory of a rank.");
    for (const auto& [rank, report] : resources)
      out.sample({{"run", run}, {"rank", std::to_string(rank)}}, number_in(report, "memory_bytes", 0));
    out.family("convoy_rank_cpu_seconds_total", "counter", "CPU time of a rank.");
    for (const auto& [rank, report] : resources)
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
                   value_of(seconds) + (part == "communication" ? waits : 0));
    }
  }
  return out.text();
}

// --- Files ---

LiveFiles::LiveFiles(std::string folder, const std::string& prometheus, Clock::time_point began)
    : folder_(std::move(folder)),
      run_(name_of_folder(folder_)),
      prometheus_(path_for(prometheus, run_)),
      began_(began) {}

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

void LiveFiles::write_prometheus() {
  if (prometheus_.empty()) return;
  try {
    write_whole(prometheus_, prometheus_text(), false);
  } catch (const Error&) {
  }
}

void LiveFiles::progress(const Json& record) {
  if (record.contains("text")) return;
  const auto now = Clock::now();
  progress_ = record;
  if (now - progress_written_ < write_interval) return;
  progress_written_ = now;
  try {
    write_whole(folder_ + "/progress.json", record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", false);
  } catch (const Error&) {
  }
  write_prometheus();
}

void LiveFiles::evaluated(const Json& record) { evaluated_ = record; }

void LiveFiles::resources(const Json& report) {
  resources_[report.at("rank").get<int>()] = report;
  Json line = {{"time_s", std::chrono::duration<double>(Clock::now() - began_).count()}};
  line.update(report);
  line.erase("times");  // summary.json has them
  try {
    const std::string path = folder_ + "/resources.jsonl";
    write_all(open_to_append_lines(path).get(), line.dump() + "\n", path);
  } catch (const Error&) {
  }
}

void LiveFiles::end(int exit_code) {
  exit_code_ = exit_code;
  write_prometheus();
  unlink((folder_ + "/progress.json").c_str());  // its content is in the summary
}

}  // namespace convoy
