#include "launch/descendants.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace convoy {
namespace {

struct Stat {
  pid_t parent = 0;
  char state = 0;
};

// "pid (name) state ppid …", where the name may hold anything.
bool read_stat(const std::string& pid, Stat& stat) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t end = line.rfind(')');
  if (end == std::string::npos || end + 4 >= line.size()) return false;
  stat.state = line[end + 2];
  stat.parent = static_cast<pid_t>(std::atoi(line.c_str() + end + 4));
  return true;
}

}  // namespace

void become_subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> descendants_of(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return {};
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    Stat stat;
    if (read_stat(name, stat) && stat.state != 'Z' && stat.state != 'X')
      children.emplace(stat.parent, static_cast<pid_t>(std::atoi(name.c_str())));
  }
  closedir(folder);
  std::vector<pid_t> found{ancestor};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto range = children.equal_range(found[i]);
    for (auto child = range.first; child != range.second; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

bool kill_descendants(int milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (true) {
    const std::vector<pid_t> alive = descendants_of(getpid());
    for (pid_t pid : alive) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (alive.empty()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 2);  // a killed process needs a moment to go
  }
}

}  // namespace convoy
