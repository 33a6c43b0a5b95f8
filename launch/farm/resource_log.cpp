#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "launch/farm/resources.h"
#include "launch/summary.h"

namespace convoy {
namespace {

constexpr double longest_interval = 60;      // seconds between lines
constexpr double share_of_age = 1.0 / 60.0;  // of a pipeline's age
constexpr char live_file[] = "resources.json";

double number(const Json& line, const char* key, double fallback) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : fallback;
}

int64_t whole(const Json& line, const char* key, int64_t fallback) {
  return static_cast<int64_t>(number(line, key, static_cast<double>(fallback)));
}

double rounded(double value) { return static_cast<double>(static_cast<int64_t>(value * 1000 + 0.5)) / 1000; }

}  // namespace

Json to_json(const ResourceSample& sample) {
  Json line = {{"kind", "resources"},
               {"pipeline", sample.pipeline},
               {"time", rounded(sample.time)},
               {"cpu", rounded(sample.cpu)},
               {"cpu_seconds", rounded(sample.cpu_seconds)},
               {"memory_bytes", sample.memory},
               {"memory_peak_bytes", sample.memory_peak},
               {"mapped_bytes", sample.mapped},
               {"processes", sample.processes}};
  if (sample.gpu >= 0) line["gpu"] = rounded(sample.gpu);
  if (sample.gpu_memory >= 0) line["gpu_memory_bytes"] = sample.gpu_memory;
  if (sample.gpu_of_device) line["gpu_of_device"] = true;
  return line;
}

ResourceSample resource_sample(const Json& line) {
  ResourceSample sample;
  if (!line.is_object()) return sample;
  if (const auto name = line.find("pipeline"); name != line.end() && name->is_string()) sample.pipeline = *name;
  sample.time = number(line, "time", 0);
  sample.cpu = number(line, "cpu", 0);
  sample.cpu_seconds = number(line, "cpu_seconds", 0);
  sample.memory = whole(line, "memory_bytes", 0);
  sample.memory_peak = whole(line, "memory_peak_bytes", 0);
  sample.mapped = whole(line, "mapped_bytes", 0);
  sample.processes = static_cast<int>(whole(line, "processes", 0));
  sample.gpu = number(line, "gpu", -1);
  sample.gpu_memory = whole(line, "gpu_memory_bytes", -1);
  sample.gpu_of_device = line.contains("gpu_of_device");
  return sample;
}

struct ResourceLog::Inner {
  struct Line {
    double first = 0, next = 0;  // by the samples' time
    Json last;
  };
  std::string folder;
  int fd = -1;
  std::map<std::string, Line> lines;

  // A full disk is for those who train to report: what is lost here is a line.
  void put(const std::string& text) const {
    const ssize_t written = ::write(fd, text.data(), text.size());
    (void)written;
  }
  void tell_live() const {
    Json all = Json::array();
    for (const auto& [name, line] : lines) all.push_back(line.last);
    try {
      write_whole(folder + "/" + live_file, all.dump() + "\n", false);
    } catch (const Error&) {
    }
  }
};

ResourceLog::ResourceLog(const std::string& run_folder) : inner_(std::make_unique<Inner>()) {
  inner_->folder = run_folder;
  const std::string path = run_folder + "/metrics.jsonl";
  inner_->fd = open_to_append(path).release();
  // A line that a killed supervisor has cut must not swallow ours.
  char last = '\n';
  const off_t size = lseek(inner_->fd, 0, SEEK_END);
  if (size > 0 && pread(inner_->fd, &last, 1, size - 1) == 1 && last != '\n') inner_->put("\n");
  // Temporaries of one that was killed while it wrote.
  for (const std::string& name : names_in(run_folder))
    if (name.rfind(str(".", live_file, "."), 0) == 0) unlink((run_folder + "/" + name).c_str());
}

ResourceLog::~ResourceLog() {
  close(inner_->fd);
  unlink((inner_->folder + "/" + live_file).c_str());
}

void ResourceLog::write(const std::vector<ResourceSample>& samples) {
  std::string text;
  for (const ResourceSample& sample : samples) {
    Inner::Line& line = inner_->lines[sample.pipeline];
    if (line.first == 0) line.first = sample.time;
    line.last = to_json(sample);
    if (sample.time < line.next) continue;
    // Half a second of slack: a sample that is early by milliseconds does not cost a whole interval.
    line.next = sample.time + std::min((sample.time - line.first) * share_of_age, longest_interval) - 0.5;
    text += line.last.dump() + "\n";
  }
  if (!text.empty()) inner_->put(text);
  inner_->tell_live();
}

void ResourceLog::end(const ResourceSample& last) {
  inner_->lines.erase(last.pipeline);
  if (last.time > 0) inner_->put(to_json(last).dump() + "\n");
  // While others run, the next samples write it without this one, within a second.
  if (inner_->lines.empty()) inner_->tell_live();
}

}  // namespace convoy
