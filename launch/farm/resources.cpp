#include "launch/farm/resources.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "launch/farm/gpu_use.h"
#include "launch/farm/process_trees.h"
#include "launch/session.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double sample_every = 1;   // seconds
constexpr double look_at_least = 1;  // seconds between looks at a memory limit, and how close they come
constexpr double look_at_most = 0.1;
constexpr double growth = 2e9;      // bytes a second: about what one process gets from the kernel at most
constexpr double allowed = 0.0025;  // of a core

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Clock::time_point later(Clock::time_point from, double seconds) {
  return from + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace

// Shared with tasks that wait in the loop, which find it gone or closed. `mutex` guards all but the loop and the callbacks.
struct ResourceWatch::Inner : std::enable_shared_from_this<Inner> {
  struct Entry {
    WatchedPipeline pipeline;
    ResourceSample sample;
    Clock::time_point sampled, look;
    bool told = false;
  };

  Inner(EventLoop& loop, OnSamples on_samples, OnOverLimit on_over_limit)
      : loop(loop), on_samples(std::move(on_samples)), on_over_limit(std::move(on_over_limit)) {}

  void run();
  void sample_all(std::unique_lock<std::mutex>& lock, Clock::time_point now);
  void look_at(Entry& entry, Clock::time_point now);
  std::map<std::string, GpuReading> read_gpus(std::unique_lock<std::mutex>& lock);
  void add_gpus(const std::map<std::string, GpuReading>& readings);
  Clock::time_point next_look() const;
  bool watches(const WatchedPipeline& pipeline);  // still that process
  void post(std::function<void()> task);

  EventLoop& loop;
  const OnSamples on_samples;
  const OnOverLimit on_over_limit;
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  ProcessTrees trees;
  GpuUse gpus;  // of the thread alone
  std::map<std::string, Entry> entries;
  Clock::time_point next_sample = Clock::now();
  std::atomic<double> cost{0};
  std::thread thread;
};

// After `close` the callbacks' owner may be gone; both run in the loop's thread.
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
  entry.sampled = entry.look = Clock::now();
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
      next_sample = later(now, std::max(sample_every, (thread_seconds() - before) / allowed));
    }
    for (auto& [name, entry] : entries)
      if (entry.pipeline.memory_limit > 0 && !entry.told && now >= entry.look) look_at(entry, now);
    cost = thread_seconds();
    changed.wait_until(lock, std::min(next_sample, next_look()));
  }
}

Clock::time_point ResourceWatch::Inner::next_look() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [name, entry] : entries)
    if (entry.pipeline.memory_limit > 0 && !entry.told) next = std::min(next, entry.look);
  return next;
}

// A limit that is far away cannot be reached before the next look.
void ResourceWatch::Inner::look_at(Entry& entry, Clock::time_point now) {
  const MemoryUse use = trees.memory(entry.pipeline.name);
  entry.sample.memory = use.anonymous;
  entry.sample.mapped = use.mapped;
  entry.sample.memory_peak = std::max(entry.sample.memory_peak, use.anonymous);
  const int64_t left = entry.pipeline.memory_limit - use.anonymous;
  if (left < 0) {
    entry.told = true;
    entry.sample.time = unix_seconds();
    post([this, sample = entry.sample, pipeline = entry.pipeline] {
      if (watches(pipeline)) on_over_limit(sample, pipeline.memory_limit);
    });
    return;
  }
  entry.look = later(now, std::clamp(static_cast<double>(left) / growth, look_at_most, look_at_least));
}

void ResourceWatch::Inner::sample_all(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
  if (entries.empty()) return;
  const std::map<std::string, GpuReading> readings = read_gpus(lock);
  // What counts towards a limit is found at once, whoever has started it.
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

// The driver may take its time, and who adds a pipeline does not wait for it.
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
  std::unordered_set<pid_t> everyone;
  std::map<std::string, int> users;
  for (const auto& [name, entry] : entries) {
    for (pid_t pid : trees.processes(name)) everyone.insert(pid);
    for (const std::string& uuid : entry.pipeline.gpus) ++users[uuid];
  }
  for (auto& [name, entry] : entries) {
    std::vector<GpuReading> own;
    bool alone = true;
    for (const std::string& uuid : entry.pipeline.gpus) {
      const auto found = readings.find(uuid);
      if (found == readings.end()) continue;
      own.push_back(found->second);
      alone = alone && users.at(uuid) == 1;
    }
    const GpuShare share = share_of(own, trees.processes(name), everyone, alone);
    entry.sample.gpu = share.use;
    entry.sample.gpu_memory = share.memory;
    entry.sample.gpu_of_device = share.of_device;
  }
}

}  // namespace convoy
