#include "launch/farm/monitor/resources.h"

#include <fcntl.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"

namespace convoy {

// --- ProcessTrees ---

namespace {

// Forgets processes outside the trees every 30 readings: the kernel may reuse their ids.
constexpr uint64_t forget_strangers_every = 30;
constexpr uint64_t pass_over_proc_every = 10;  // readings, if the others follow the children of known processes
constexpr size_t few_trees = 16;  // reading only the processes of 16 trees is cheaper than reading all of /proc

// First bytes of /proc/PID/NAME, without the cost of a stream; "" if the process has ended.
class ProcText {
 public:
  ProcText(pid_t pid, const char* name) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/%s", static_cast<int>(pid), name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t got = read(fd, text_, sizeof text_ - 1);
    close(fd);
    text_[got > 0 ? got : 0] = '\0';
  }
  const char* text() const { return text_; }

 private:
  char text_[4096] = "";
};

int64_t page_size() {
  static const int64_t size = sysconf(_SC_PAGESIZE);
  return size;
}

bool has_swap() {
  struct sysinfo host {};
  return sysinfo(&host) == 0 && host.totalswap > 0;
}

int64_t status_bytes(const char* status, const char* key) {
  const char* found = std::strstr(status, key);
  return found ? std::strtoll(found + std::strlen(key), nullptr, 10) * 1024 : 0;
}

// statm costs a third of status but lacks swap. Its "shared" counts pages of files and shared memory; the rest of the
// resident pages is anonymous.
MemoryUse memory_of(pid_t pid, bool swap) {
  MemoryUse use;
  if (swap) {
    const ProcText status(pid, "status");
    use.anonymous = status_bytes(status.text(), "\nRssAnon:") + status_bytes(status.text(), "\nVmSwap:");
    use.mapped = status_bytes(status.text(), "\nRssFile:") + status_bytes(status.text(), "\nRssShmem:");
    return use;
  }
  const ProcText statm(pid, "statm");
  long long size = 0, resident = 0, shared = 0;
  if (std::sscanf(statm.text(), "%lld %lld %lld", &size, &resident, &shared) != 3) return use;
  use.anonymous = (resident - shared) * page_size();
  use.mapped = shared * page_size();
  return use;
}

// Children of the first thread. The kernel may omit one while others end; the next read has it.
std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  char name[48];
  std::snprintf(name, sizeof name, "task/%d/children", static_cast<int>(pid));
  const ProcText list(pid, name);
  for (const char* at = list.text(); *at != '\0';) {
    char* end = nullptr;
    const long child = std::strtol(at, &end, 10);
    // The last number of a full buffer may be truncated.
    if (end == at || *end != ' ') break;
    children.push_back(static_cast<pid_t>(child));
    at = end + 1;
  }
  return children;
}

bool kernel_lists_children() {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/children", static_cast<int>(getpid()));
  return access(path, R_OK) == 0;
}

}  // namespace

struct ProcessTrees::Stat {
  pid_t parent = 0, group = 0;
  char state = 0;
  uint64_t ticks = 0, started = 0;
};

// Parses "pid (name) state ppid pgrp …". The name may contain brackets, so fields start after the last one.
bool ProcessTrees::read_stat(pid_t pid, Stat& stat) {
  const ProcText text(pid, "stat");
  const char* fields = std::strrchr(text.text(), ')');
  if (fields == nullptr) return false;
  unsigned long long user = 0, system = 0, started = 0;
  int parent = 0, group = 0;
  if (std::sscanf(fields + 1,
                  " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu",  //
                  &stat.state, &parent, &group, &user, &system, &started) != 6)
    return false;
  stat.parent = parent;
  stat.group = group;
  stat.ticks = user + system;
  stat.started = started;
  return true;
}

ProcessTrees::ProcessTrees()
    : proc_(opendir("/proc")), swap_(has_swap()), has_children_files_(kernel_lists_children()) {}

void ProcessTrees::add(const std::string& tree, pid_t root) {
  remove(tree);
  drop(root);
  trees_[tree].processes.insert(root);
  processes_[root].tree = tree;  // the next refresh reads the rest
  strangers_.clear();            // its children may be among them
}

void ProcessTrees::remove(const std::string& tree) {
  const auto found = trees_.find(tree);
  if (found == trees_.end()) return;
  for (pid_t pid : found->second.processes) processes_.erase(pid);
  for (auto group = groups_.begin(); group != groups_.end();)
    group = group->second == tree ? groups_.erase(group) : std::next(group);
  trees_.erase(found);
}

void ProcessTrees::join(pid_t pid, const std::string& tree, const Stat& stat) {
  Process& process = processes_[pid];
  process = Process{tree, stat.started, stat.ticks, stat.state == 'Z'};
  Tree& joined = trees_.at(tree);
  joined.processes.insert(pid);
  joined.ticks += stat.ticks;
  if (stat.group == pid) groups_.emplace(pid, tree);
}

void ProcessTrees::drop(pid_t pid) {
  const auto found = processes_.find(pid);
  if (found == processes_.end()) return;
  trees_.at(found->second.tree).processes.erase(pid);
  processes_.erase(found);
}

// New processes join the tree of their process group or of their nearest ancestor in a tree. The rest are strangers.
void ProcessTrees::assign(const std::unordered_map<pid_t, Stat>& fresh) {
  for (const auto& [pid, stat] : fresh) {
    std::vector<pid_t> chain;  // new processes, from this one up to a known ancestor
    std::string tree;
    for (pid_t at = pid; chain.size() <= fresh.size();) {
      if (const auto known = processes_.find(at); known != processes_.end()) {
        tree = known->second.tree;
        break;
      }
      const auto found = fresh.find(at);
      if (found == fresh.end()) break;
      if (const auto group = groups_.find(found->second.group); group != groups_.end()) tree = group->second;
      chain.push_back(at);
      if (!tree.empty()) break;
      at = found->second.parent;
    }
    for (pid_t pid : chain)
      if (tree.empty())
        strangers_.insert(pid);
      else
        join(pid, tree, fresh.at(pid));
  }
}

bool ProcessTrees::same(const Process& process, const Stat& stat) {
  return process.started == 0 || process.started == stat.started;
}

void ProcessTrees::update(pid_t pid, Process& process, const Stat& stat) {
  if (process.started == 0 && stat.group == pid) groups_.emplace(pid, process.tree);
  process.started = stat.started;
  trees_.at(process.tree).ticks += stat.ticks - process.ticks;
  process.ticks = stat.ticks;
  process.ended = stat.state == 'Z';
}

void ProcessTrees::refresh(bool all) {
  if (!proc_) return;
  ++passes_;
  if (!all && has_children_files_ && trees_.size() <= few_trees && passes_ % pass_over_proc_every != 0)
    refresh_descendants();
  else
    refresh_from_proc();
}

void ProcessTrees::refresh_descendants() {
  std::vector<pid_t> known;
  for (const auto& [pid, process] : processes_) known.push_back(pid);
  std::vector<pid_t> parents{getpid()};  // orphans of the trees are children of this process
  for (pid_t pid : known) {
    Stat stat;
    Process& process = processes_.at(pid);
    if (!read_stat(pid, stat) || !same(process, stat)) {
      drop(pid);
      continue;
    }
    update(pid, process, stat);
    if (!process.ended) parents.push_back(pid);
  }
  std::unordered_map<pid_t, Stat> fresh;
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    for (pid_t child : children_of(parent)) {
      Stat stat;
      if (processes_.count(child) > 0 || strangers_.count(child) > 0 || fresh.count(child) > 0) continue;
      if (!read_stat(child, stat)) continue;
      fresh.emplace(child, stat);
      parents.push_back(child);
    }
  }
  assign(fresh);
}

void ProcessTrees::refresh_from_proc() {
  if (passes_ % forget_strangers_every == 0) strangers_.clear();
  rewinddir(proc_.get());
  std::unordered_map<pid_t, Stat> fresh;
  std::unordered_set<pid_t> seen, strangers;
  while (const dirent* entry = readdir(proc_.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    const auto pid = static_cast<pid_t>(std::atoi(entry->d_name));
    if (strangers_.count(pid) > 0) {
      strangers.insert(pid);
      continue;
    }
    Stat stat;
    if (!read_stat(pid, stat)) continue;
    const auto known = processes_.find(pid);
    if (known != processes_.end() && same(known->second, stat)) {
      update(pid, known->second, stat);
    } else {
      drop(pid);
      fresh.emplace(pid, stat);
    }
    seen.insert(pid);
  }
  strangers_ = std::move(strangers);
  std::vector<pid_t> gone;
  for (const auto& [pid, process] : processes_)
    if (seen.count(pid) == 0) gone.push_back(pid);
  for (pid_t pid : gone) drop(pid);
  assign(fresh);
}

MemoryUse ProcessTrees::memory(const std::string& tree) const {
  MemoryUse all;
  const auto found = trees_.find(tree);
  if (found == trees_.end()) return all;
  for (pid_t pid : found->second.processes) {
    if (processes_.at(pid).ended) continue;
    const MemoryUse one = memory_of(pid, swap_);
    all.anonymous += one.anonymous;
    all.mapped += one.mapped;
  }
  return all;
}

double ProcessTrees::cpu_seconds(const std::string& tree) const {
  static const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto found = trees_.find(tree);
  return found == trees_.end() ? 0 : static_cast<double>(found->second.ticks) * tick;
}

std::vector<pid_t> ProcessTrees::processes(const std::string& tree) const {
  std::vector<pid_t> living;
  const auto found = trees_.find(tree);
  if (found == trees_.end()) return living;
  for (pid_t pid : found->second.processes)
    if (!processes_.at(pid).ended) living.push_back(pid);
  return living;
}

// --- ResourceWatch ---

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double sample_every = 1;            // seconds
constexpr double longest_check_interval = 1;  // seconds between reads for a memory limit
constexpr double shortest_check_interval = 0.1;
constexpr double growth = 2e9;       // bytes per second; about the fastest growth of one process
constexpr double max_cost = 0.0025;  // fraction of a core for samples

void set_memory(const MemoryUse& use, ResourceSample& sample) {
  sample.memory = use.anonymous;
  sample.mapped = use.mapped;
  sample.memory_peak = std::max(sample.memory_peak, use.anonymous);
}

Clock::time_point later(Clock::time_point from, double seconds) {
  return from + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

constexpr double longest_interval = 60;      // seconds between lines
constexpr double share_of_age = 1.0 / 60.0;  // interval between lines, by age
constexpr char live_file[] = "resources.json";

double rounded(double value) { return std::floor(value * 1000 + 0.5) / 1000; }

}  // namespace

bool ResourceWatch::watches(const WatchedPipeline& pipeline) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(pipeline.name);
  return found != entries_.end() && found->second.pipeline.pid == pipeline.pid;
}

ResourceWatch::ResourceWatch(EventLoop& loop, OnSamples on_samples, OnOverLimit on_over_limit)
    : on_samples_(std::move(on_samples)), on_over_limit_(std::move(on_over_limit)), tasks_(loop) {
  thread_ = std::thread([this] { run(); });
}

ResourceWatch::~ResourceWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ResourceWatch::add(const WatchedPipeline& pipeline) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[pipeline.name];
  entry = Entry{};
  entry.pipeline = pipeline;
  entry.sample.pipeline = pipeline.name;
  entry.sampled = entry.next_check = Clock::now();
  trees_.add(pipeline.name, pipeline.pid);
  if (pipeline.memory_limit > 0) changed_.notify_all();  // it may be the first
}

ResourceSample ResourceWatch::remove(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ResourceSample last;
  last.pipeline = name;
  const auto found = entries_.find(name);
  if (found == entries_.end()) return last;
  last = found->second.sample;
  last.time = unix_seconds();
  trees_.remove(name);
  entries_.erase(found);
  return last;
}

void ResourceWatch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    const Clock::time_point now = Clock::now();
    if (now >= next_sample_) {
      const double before = thread_cpu_seconds();
      sample_all(lock, now);
      next_sample_ = later(now, std::max(sample_every, (thread_cpu_seconds() - before) / max_cost));
    }
    for (auto& [name, entry] : entries_)
      if (entry.pipeline.memory_limit > 0 && !entry.reported && now >= entry.next_check) check_limit(entry, now);
    cost_ = thread_cpu_seconds();
    changed_.wait_until(lock, std::min(next_sample_, next_check()));
  }
}

ResourceWatch::Clock::time_point ResourceWatch::next_check() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [name, entry] : entries_)
    if (entry.pipeline.memory_limit > 0 && !entry.reported) next = std::min(next, entry.next_check);
  return next;
}

// The next check comes before one process could reach the limit, but not within 0.1 s and at latest after 1 s.
void ResourceWatch::check_limit(Entry& entry, Clock::time_point now) {
  set_memory(trees_.memory(entry.pipeline.name), entry.sample);
  const int64_t left = entry.pipeline.memory_limit - entry.sample.memory;
  if (left < 0) {
    entry.reported = true;
    entry.sample.time = unix_seconds();
    tasks_.post([this, sample = entry.sample, pipeline = entry.pipeline] {
      if (watches(pipeline)) on_over_limit_(sample, pipeline.memory_limit);
    });
    return;
  }
  entry.next_check =
      later(now, std::clamp(static_cast<double>(left) / growth, shortest_check_interval, longest_check_interval));
}

void ResourceWatch::sample_all(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
  if (entries_.empty()) return;
  const std::map<std::string, GpuReading> readings = read_gpus(lock);
  // For memory limits all new processes must be found, so all of /proc is read.
  trees_.refresh(std::any_of(entries_.begin(), entries_.end(),
                             [](const auto& entry) { return entry.second.pipeline.memory_limit > 0; }));
  std::vector<ResourceSample> samples;
  for (auto& [name, entry] : entries_) {
    measure(trees_, name, Seconds(now - entry.sampled).count(), entry.sample);
    entry.sampled = now;
  }
  add_gpus(readings);
  for (const auto& [name, entry] : entries_) samples.push_back(entry.sample);
  tasks_.post([this, samples = std::move(samples)] { on_samples_(samples); });
}

// Releases the lock, so that add() does not wait for the driver.
std::map<std::string, GpuReading> ResourceWatch::read_gpus(std::unique_lock<std::mutex>& lock) {
  std::unordered_set<std::string> uuids;
  for (const auto& [name, entry] : entries_) uuids.insert(entry.pipeline.gpus.begin(), entry.pipeline.gpus.end());
  lock.unlock();
  std::map<std::string, GpuReading> readings = gpus_.read(uuids);
  lock.lock();
  return readings;
}

void ResourceWatch::add_gpus(const std::map<std::string, GpuReading>& readings) {
  if (readings.empty()) return;
  std::unordered_set<pid_t> all_watched;
  std::map<std::string, int> users;
  for (const auto& [name, entry] : entries_) {
    for (pid_t pid : trees_.processes(name)) all_watched.insert(pid);
    for (const std::string& uuid : entry.pipeline.gpus) ++users[uuid];
  }
  for (auto& [name, entry] : entries_) {
    std::vector<GpuReading> readings_of_pipeline;
    bool alone = true;
    for (const std::string& uuid : entry.pipeline.gpus) {
      const auto found = readings.find(uuid);
      if (found == readings.end()) continue;
      readings_of_pipeline.push_back(found->second);
      alone = alone && users.at(uuid) == 1;
    }
    const GpuShare share = share_of(readings_of_pipeline, trees_.processes(name), all_watched, alone);
    entry.sample.gpu = share.use;
    entry.sample.gpu_memory = share.memory;
    entry.sample.gpu_of_device = share.of_device;
  }
}

// --- ResourceSample ---

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
  sample.memory = whole_in(line, "memory_bytes", 0);
  sample.memory_peak = whole_in(line, "memory_peak_bytes", 0);
  sample.mapped = whole_in(line, "mapped_bytes", 0);
  sample.processes = static_cast<int>(whole_in(line, "processes", 0));
  sample.gpu = number_in(line, "gpu", -1);
  sample.gpu_memory = whole_in(line, "gpu_memory_bytes", -1);
  sample.gpu_of_device = line.contains("gpu_of_device");
  return sample;
}

void measure(const ProcessTrees& trees, const std::string& tree, double elapsed, ResourceSample& sample) {
  const double cpu_seconds = trees.cpu_seconds(tree);
  if (elapsed > 0) sample.cpu = (cpu_seconds - sample.cpu_seconds) / elapsed;
  sample.cpu_seconds = cpu_seconds;
  set_memory(trees.memory(tree), sample);
  sample.processes = static_cast<int>(trees.processes(tree).size());
  sample.time = unix_seconds();
}

// --- ResourceLog ---

// Ignores errors: on a full disk only lines are lost, and the pipelines report the error.
void ResourceLog::put(const std::string& text) const {
  const ssize_t written = ::write(file_.get(), text.data(), text.size());
  (void)written;
}

void ResourceLog::write_live() const {
  Json all = Json::array();
  for (const auto& [name, pipeline] : pipelines_) all.push_back(pipeline.last);
  try {
    write_whole(folder_ + "/" + live_file, all.dump() + "\n", false);
  } catch (const Error&) {
  }
}

ResourceLog::ResourceLog(const std::string& run_folder)
    : folder_(run_folder), file_(open_to_append_lines(run_folder + "/metrics.jsonl")) {
  // Removes temporaries of a killed supervisor.
  for (const std::string& name : names_in(run_folder))
    if (name.rfind(str(".", live_file, "."), 0) == 0) unlink((run_folder + "/" + name).c_str());
}

ResourceLog::~ResourceLog() { unlink((folder_ + "/" + live_file).c_str()); }

void ResourceLog::write(const std::vector<ResourceSample>& samples) {
  std::string text;
  for (const ResourceSample& sample : samples) {
    Pipeline& pipeline = pipelines_[sample.pipeline];
    if (pipeline.first == 0) pipeline.first = sample.time;
    pipeline.last = to_json(sample);
    if (sample.time < pipeline.next) continue;
    // Half a second of tolerance, so that a sample that is early by milliseconds is not skipped.
    pipeline.next = sample.time + std::min((sample.time - pipeline.first) * share_of_age, longest_interval) - 0.5;
    text += pipeline.last.dump() + "\n";
  }
  if (!text.empty()) put(text);
  write_live();
}

void ResourceLog::end(const ResourceSample& last) {
  pipelines_.erase(last.pipeline);
  if (last.time > 0) put(to_json(last).dump() + "\n");
  // While others run, the next write() updates the file within a second.
  if (pipelines_.empty()) write_live();
}

}  // namespace convoy
