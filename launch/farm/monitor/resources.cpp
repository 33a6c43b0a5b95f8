#include "launch/farm/monitor/resources.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/files/files.h"
#include "launch/farm/monitor/gpu_use.h"
#include "launch/farm/monitor/process_trees.h"
#include "launch/job/run_attempt.h"
#include "launch/job/summary.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double sample_every = 1;            // seconds
constexpr double longest_check_interval = 1;  // seconds between reads for a memory limit
constexpr double shortest_check_interval = 0.1;
constexpr double growth = 2e9;       // bytes per second; about the fastest growth of one process
constexpr double max_cost = 0.0025;  // fraction of a core for samples

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Clock::time_point later(Clock::time_point from, double seconds) {
  return from + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace

// Tasks in the loop hold weak pointers to it. `mutex` guards everything except the loop and the callbacks.
struct ResourceWatch::Inner : std::enable_shared_from_this<Inner> {
  struct Entry {
    WatchedPipeline pipeline;
    ResourceSample sample;
    Clock::time_point sampled, next_check;
    bool reported = false;
  };

  Inner(EventLoop& loop, OnSamples on_samples, OnOverLimit on_over_limit)
      : loop(loop), on_samples(std::move(on_samples)), on_over_limit(std::move(on_over_limit)) {}

  void run();
  void sample_all(std::unique_lock<std::mutex>& lock, Clock::time_point now);
  void check_limit(Entry& entry, Clock::time_point now);
  std::map<std::string, GpuReading> read_gpus(std::unique_lock<std::mutex>& lock);
  void add_gpus(const std::map<std::string, GpuReading>& readings);
  Clock::time_point next_check() const;
  bool watches(const WatchedPipeline& pipeline);  // true while it watches this process
  void post(std::function<void()> task);

  EventLoop& loop;
  const OnSamples on_samples;
  const OnOverLimit on_over_limit;
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  ProcessTrees trees;
  GpuUse gpus;  // used by the thread only
  std::map<std::string, Entry> entries;
  Clock::time_point next_sample = Clock::now();
  std::atomic<double> cost{0};
  std::thread thread;
};

// Drops the task once `closed`, because the owner of the callbacks may be destroyed. Both happen in the loop's thread.
void ResourceWatch::Inner::post(std::function<void()> task) {
  loop.post([weak = weak_from_this(), task = std::move(task)] {
    const std::shared_ptr<Inner> self = weak.lock();
    if (self && !self->closed) task();
  });
}

bool ResourceWatch::Inner::watches(const WatchedPipeline& pipeline) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = entries.find(pipeline.name);
  return found != entries.end() && found->second.pipeline.pid == pipeline.pid;
}

ResourceWatch::ResourceWatch(EventLoop& loop, OnSamples on_samples, OnOverLimit on_over_limit)
    : inner_(std::make_shared<Inner>(loop, std::move(on_samples), std::move(on_over_limit))) {
  inner_->thread = std::thread([inner = inner_.get()] { inner->run(); });
}

ResourceWatch::~ResourceWatch() {
  {
    const std::lock_guard<std::mutex> lock(inner_->mutex);
    inner_->closed = true;
  }
  inner_->changed.notify_all();
  inner_->thread.join();
}

void ResourceWatch::add(const WatchedPipeline& pipeline) {
  const std::lock_guard<std::mutex> lock(inner_->mutex);
  Inner::Entry& entry = inner_->entries[pipeline.name];
  entry = Inner::Entry{};
  entry.pipeline = pipeline;
  entry.sample.pipeline = pipeline.name;
  entry.sampled = entry.next_check = Clock::now();
  inner_->trees.add(pipeline.name, pipeline.pid);
  if (pipeline.memory_limit > 0) inner_->changed.notify_all();  // it may be the first
}

ResourceSample ResourceWatch::remove(const std::string& name) {
  const std::lock_guard<std::mutex> lock(inner_->mutex);
  ResourceSample last;
  last.pipeline = name;
  const auto found = inner_->entries.find(name);
  if (found == inner_->entries.end()) return last;
  last = found->second.sample;
  last.time = unix_seconds();
  inner_->trees.remove(name);
  inner_->entries.erase(found);
  return last;
}

double ResourceWatch::cost() const { return inner_->cost; }

void ResourceWatch::Inner::run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (!closed) {
    const Clock::time_point now = Clock::now();
    if (now >= next_sample) {
      const double before = thread_seconds();
      sample_all(lock, now);
      next_sample = later(now, std::max(sample_every, (thread_seconds() - before) / max_cost));
    }
    for (auto& [name, entry] : entries)
      if (entry.pipeline.memory_limit > 0 && !entry.reported && now >= entry.next_check) check_limit(entry, now);
    cost = thread_seconds();
    changed.wait_until(lock, std::min(next_sample, next_check()));
  }
}

Clock::time_point ResourceWatch::Inner::next_check() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [name, entry] : entries)
    if (entry.pipeline.memory_limit > 0 && !entry.reported) next = std::min(next, entry.next_check);
  return next;
}

// The next check comes before the memory can reach the limit.
void ResourceWatch::Inner::check_limit(Entry& entry, Clock::time_point now) {
  const MemoryUse use = trees.memory(entry.pipeline.name);
  entry.sample.memory = use.anonymous;
  entry.sample.mapped = use.mapped;
  entry.sample.memory_peak = std::max(entry.sample.memory_peak, use.anonymous);
  const int64_t left = entry.pipeline.memory_limit - use.anonymous;
  if (left < 0) {
    entry.reported = true;
    entry.sample.time = unix_seconds();
    post([this, sample = entry.sample, pipeline = entry.pipeline] {
      if (watches(pipeline)) on_over_limit(sample, pipeline.memory_limit);
    });
    return;
  }
  entry.next_check =
      later(now, std::clamp(static_cast<double>(left) / growth, shortest_check_interval, longest_check_interval));
}

void ResourceWatch::Inner::sample_all(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
  if (entries.empty()) return;
  const std::map<std::string, GpuReading> readings = read_gpus(lock);
  // For memory limits all new processes must be found, so all of /proc is read.
  trees.refresh(std::any_of(entries.begin(), entries.end(),
                            [](const auto& entry) { return entry.second.pipeline.memory_limit > 0; }));
  std::vector<ResourceSample> samples;
  for (auto& [name, entry] : entries) {
    ResourceSample& sample = entry.sample;
    const double cpu_seconds = trees.cpu_seconds(name);
    const double elapsed = Seconds(now - entry.sampled).count();
    if (elapsed > 0) sample.cpu = (cpu_seconds - sample.cpu_seconds) / elapsed;
    sample.cpu_seconds = cpu_seconds;
    entry.sampled = now;
    const MemoryUse use = trees.memory(name);
    sample.memory = use.anonymous;
    sample.mapped = use.mapped;
    sample.memory_peak = std::max(sample.memory_peak, use.anonymous);
    sample.processes = static_cast<int>(trees.processes(name).size());
    sample.time = unix_seconds();
  }
  add_gpus(readings);
  for (const auto& [name, entry] : entries) samples.push_back(entry.sample);
  post([this, samples = std::move(samples)] { on_samples(samples); });
}

// Releases the lock, so that add() does not wait for the driver.
std::map<std::string, GpuReading> ResourceWatch::Inner::read_gpus(std::unique_lock<std::mutex>& lock) {
  std::unordered_set<std::string> uuids;
  for (const auto& [name, entry] : entries) uuids.insert(entry.pipeline.gpus.begin(), entry.pipeline.gpus.end());
  lock.unlock();
  std::map<std::string, GpuReading> readings = gpus.read(uuids);
  lock.lock();
  return readings;
}

void ResourceWatch::Inner::add_gpus(const std::map<std::string, GpuReading>& readings) {
  if (readings.empty()) return;
  std::unordered_set<pid_t> all_watched;
  std::map<std::string, int> users;
  for (const auto& [name, entry] : entries) {
    for (pid_t pid : trees.processes(name)) all_watched.insert(pid);
    for (const std::string& uuid : entry.pipeline.gpus) ++users[uuid];
  }
  for (auto& [name, entry] : entries) {
    std::vector<GpuReading> readings_of_pipeline;
    bool alone = true;
    for (const std::string& uuid : entry.pipeline.gpus) {
      const auto found = readings.find(uuid);
      if (found == readings.end()) continue;
      readings_of_pipeline.push_back(found->second);
      alone = alone && users.at(uuid) == 1;
    }
    const GpuShare share = share_of(readings_of_pipeline, trees.processes(name), all_watched, alone);
    entry.sample.gpu = share.use;
    entry.sample.gpu_memory = share.memory;
    entry.sample.gpu_of_device = share.of_device;
  }
}

namespace {

constexpr double longest_interval = 60;      // seconds between lines
constexpr double share_of_age = 1.0 / 60.0;  // interval between lines, by age
constexpr char live_file[] = "resources.json";

int64_t whole(const Json& line, const char* key, int64_t fallback) {
  return static_cast<int64_t>(number_in(line, key, static_cast<double>(fallback)));
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
  sample.time = number_in(line, "time", 0);
  sample.cpu = number_in(line, "cpu", 0);
  sample.cpu_seconds = number_in(line, "cpu_seconds", 0);
  sample.memory = whole(line, "memory_bytes", 0);
  sample.memory_peak = whole(line, "memory_peak_bytes", 0);
  sample.mapped = whole(line, "mapped_bytes", 0);
  sample.processes = static_cast<int>(whole(line, "processes", 0));
  sample.gpu = number_in(line, "gpu", -1);
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

  // Ignores errors: on a full disk only lines are lost, and the pipelines report the error.
  void put(const std::string& text) const {
    const ssize_t written = ::write(fd, text.data(), text.size());
    (void)written;
  }
  void write_live() const {
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
  // Ends a line that a killed supervisor left incomplete.
  char last = '\n';
  const off_t size = lseek(inner_->fd, 0, SEEK_END);
  if (size > 0 && pread(inner_->fd, &last, 1, size - 1) == 1 && last != '\n') inner_->put("\n");
  // Removes temporaries of a killed supervisor.
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
    // Half a second of tolerance, so that a sample that is early by milliseconds is not skipped.
    line.next = sample.time + std::min((sample.time - line.first) * share_of_age, longest_interval) - 0.5;
    text += line.last.dump() + "\n";
  }
  if (!text.empty()) inner_->put(text);
  inner_->write_live();
}

void ResourceLog::end(const ResourceSample& last) {
  inner_->lines.erase(last.pipeline);
  if (last.time > 0) inner_->put(to_json(last).dump() + "\n");
  // While others run, the next write() updates the file within a second.
  if (inner_->lines.empty()) inner_->write_live();
}

}  // namespace convoy
