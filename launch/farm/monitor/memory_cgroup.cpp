#include "launch/farm/monitor/memory_cgroup.h"

#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <utility>

#include "core/base/text.h"

namespace convoy {
namespace {

constexpr int tries_to_remove = 20;  // a killed process leaves its cgroup a moment later
// Increase of file pages between two calls of follow_files(), at the rate of `growth` in resources.cpp.
constexpr int64_t room_for_files = 512 << 20;

struct CgroupFolder {
  std::string folder;  // of this process's cgroup
  bool v2 = false;
};

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Reads lines "hierarchy:controllers:/path". In a container the path may exist on the host only.
std::optional<CgroupFolder> self_cgroup(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  std::optional<CgroupFolder> v2;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), after = line.find(':', first + 1);
    if (first == std::string::npos || after == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, after - first - 1) + ",",
                      path = line.substr(after + 1);
    if (controllers.find(",memory,") != std::string::npos) return CgroupFolder{mount + "/memory" + path, false};
    if (controllers == ",,") v2 = CgroupFolder{mount + path, true};
  }
  return v2;
}

// Removes empty cgroups of dead supervisors.
void remove_stale_cgroups(const std::string& folder) {
  DIR* const all = opendir(folder.c_str());
  if (all == nullptr) return;
  while (const dirent* entry = readdir(all)) {
    int owner = 0;
    if (sscanf(entry->d_name, "convoy-%d-", &owner) != 1 || owner <= 0 || owner == getpid()) continue;
    if (kill(owner, 0) != 0 && errno == ESRCH) rmdir((folder + entry->d_name).c_str());
  }
  closedir(all);
}

bool write_line(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  return bool(file);
}

}  // namespace

std::unique_ptr<MemoryCgroup> MemoryCgroup::make(const std::string& name, int64_t limit, std::string& why,
                                                 const std::string& root) {
  const std::optional<CgroupFolder> parent = self_cgroup(root);
  if (!parent || !is_folder(parent->folder)) {
    why = "no memory cgroup of this process is visible";
    return nullptr;
  }
  std::string folder = parent->folder;
  if (folder.back() != '/') folder += '/';
  remove_stale_cgroups(folder);
  folder += str("convoy-", getpid(), "-", name);
  // A cgroup of this name is from an earlier start; its counts would be wrong here.
  if (mkdir(folder.c_str(), 0755) != 0 &&
      (errno != EEXIST || ((rmdir(folder.c_str()) != 0 || mkdir(folder.c_str(), 0755) != 0) && errno != EBUSY))) {
    why = str(folder, ": ", strerror(errno));
    return nullptr;
  }
  std::unique_ptr<MemoryCgroup> group(new MemoryCgroup(folder, parent->v2, limit + limit / 4));
  if (!group->bound(group->anonymous_ + room_for_files)) {
    why = str(folder, ": the memory controller is not enabled for groups below this one");
    return nullptr;
  }
  if (parent->v2) write_line(folder + "/memory.swap.max", "0");  // the file is missing without swap
  return group;
}

// Version 1 has a second limit, on memory with swap, which must never be below the first.
bool MemoryCgroup::bound(int64_t bytes) {
  const std::string text = std::to_string(bytes);
  const bool raised = bytes > bytes_;
  const auto with_swap = [&] {
    if (!v2_) write_line(folder_ + "/memory.memsw.limit_in_bytes", text);
  };
  if (raised && bytes_ > 0) with_swap();
  if (!write_line(folder_ + (v2_ ? "/memory.max" : "/memory.limit_in_bytes"), text)) return false;
  if (!raised || bytes_ == 0) with_swap();
  bytes_ = bytes;
  return true;
}

void MemoryCgroup::follow_files() {
  std::ifstream file(folder_ + "/memory.stat");
  const std::string wanted = v2_ ? "file" : "total_cache";  // both include shared memory
  std::string key;
  for (int64_t bytes = 0; file >> key >> bytes;) {
    if (key != wanted) continue;
    const int64_t now = anonymous_ + room_for_files + bytes;
    if (std::abs(now - bytes_) > room_for_files / 16) bound(now);
    return;
  }
}

MemoryCgroup::~MemoryCgroup() {
  for (int i = 0; i < tries_to_remove && rmdir(folder_.c_str()) != 0 && errno == EBUSY; ++i) usleep(5000);
}

bool MemoryCgroup::add(pid_t pid) { return write_line(folder_ + "/cgroup.procs", std::to_string(pid)); }

bool MemoryCgroup::killed_some() const {
  std::ifstream file(folder_ + (v2_ ? "/memory.events" : "/memory.oom_control"));
  std::string key;
  for (int64_t count = 0; file >> key >> count;)
    if (key == "oom_kill" && count > 0) return true;
  return false;
}

}  // namespace convoy
