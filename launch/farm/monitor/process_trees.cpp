#include "launch/farm/monitor/process_trees.h"

#include <fcntl.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace convoy {
namespace {

// Process ids are reused, so a stranger's id may become a tree's.
constexpr uint64_t forget_strangers_every = 30;
constexpr uint64_t pass_over_proc_every = 10;
constexpr size_t few_trees = 16;  // reading their processes is cheaper than a pass over a thousand

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

// New processes join the tree of their nearest ancestor in one; the rest are strangers.
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

}  // namespace convoy
