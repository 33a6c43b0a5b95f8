#include "launch/farm/memory_group.h"

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

#include "core/text.h"

namespace convoy {
namespace {

constexpr int tries_to_remove = 20;  // a process that was killed leaves its group a moment later
// What pages of files may grow by between two calls of follow_files(), at the rate of resources.cpp's `growth`.
constexpr int64_t room_for_files = 512 << 20;

struct Place {
  std::string folder;  // of this process's own group
  bool second = false;
};

bool is_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// "hierarchy:controllers:/path". Inside a container the path may be one that only the host sees: then there is none.
std::optional<Place> own_group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  std::optional<Place> second;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), after = line.find(':', first + 1);
    if (first == std::string::npos || after == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, after - first - 1) + ",",
                      path = line.substr(after + 1);
    if (controllers.find(",memory,") != std::string::npos) return Place{mount + "/memory" + path, false};
    if (controllers == ",,") second = Place{mount + path, true};
  }
  return second;
}

// Groups that supervisors left behind which were killed; one that is not empty stays.
void sweep(const std::string& folder) {
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

std::unique_ptr<MemoryGroup> MemoryGroup::make(const std::string& name, int64_t limit, std::string& why,
                                               const std::string& root) {
  const std::optional<Place> place = own_group(root);
  if (!place || !is_folder(place->folder)) {
    why = "no memory cgroup of this process is to be seen";
    return nullptr;
  }
  std::string folder = place->folder;
  if (folder.back() != '/') folder += '/';
  sweep(folder);
  folder += str("convoy-", getpid(), "-", name);
  // One of this name is of a start before: its counts are not to be taken for this one's.
  if (mkdir(folder.c_str(), 0755) != 0 &&
      (errno != EEXIST || ((rmdir(folder.c_str()) != 0 || mkdir(folder.c_str(), 0755) != 0) && errno != EBUSY))) {
    why = str(folder, ": ", strerror(errno));
    return nullptr;
  }
  std::unique_ptr<MemoryGroup> group(new MemoryGroup(folder, place->second, limit + limit / 4));
  if (!group->bound(group->anonymous_ + room_for_files)) {
    why = str(folder, ": the memory controller is not enabled for groups below this one");
    return nullptr;
  }
  if (place->second) write_line(folder + "/memory.swap.max", "0");  // where there is no swap, nor is this file
  return group;
}

// Version 1 bounds memory with swap by a number of its own, never below the other: swapped out it would count no more.
bool MemoryGroup::bound(int64_t bytes) {
  const std::string text = std::to_string(bytes);
  const bool raised = bytes > bytes_;
  const auto with_swap = [&] {
    if (!second_) write_line(folder_ + "/memory.memsw.limit_in_bytes", text);
  };
  if (raised && bytes_ > 0) with_swap();
  if (!write_line(folder_ + (second_ ? "/memory.max" : "/memory.limit_in_bytes"), text)) return false;
  if (!raised || bytes_ == 0) with_swap();
  bytes_ = bytes;
  return true;
}

void MemoryGroup::follow_files() {
  std::ifstream file(folder_ + "/memory.stat");
  const std::string wanted = second_ ? "file" : "total_cache";  // both with shared memory
  std::string key;
  for (int64_t bytes = 0; file >> key >> bytes;) {
    if (key != wanted) continue;
    const int64_t now = anonymous_ + room_for_files + bytes;
    if (std::abs(now - bytes_) > room_for_files / 16) bound(now);
    return;
  }
}

MemoryGroup::~MemoryGroup() {
  for (int i = 0; i < tries_to_remove && rmdir(folder_.c_str()) != 0 && errno == EBUSY; ++i) usleep(5000);
}

bool MemoryGroup::add(pid_t pid) { return write_line(folder_ + "/cgroup.procs", std::to_string(pid)); }

bool MemoryGroup::killed_some() const {
  std::ifstream file(folder_ + (second_ ? "/memory.events" : "/memory.oom_control"));
  std::string key;
  for (int64_t count = 0; file >> key >> count;)
    if (key == "oom_kill" && count > 0) return true;
  return false;
}

}  // namespace convoy
