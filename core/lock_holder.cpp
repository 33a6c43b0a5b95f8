#include "core/lock_holder.h"

#include <sys/sysmacros.h>

#include <cstdio>
#include <fstream>

#include "core/text.h"

namespace convoy {
namespace {

pid_t holder_of(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0 ? lock_holder_of(file) : -1;
}

std::string program(pid_t process) {
  std::ifstream file(str("/proc/", process, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

// "1: FLOCK  ADVISORY  WRITE 2061 08:01:1835027 0 EOF", device and inode as the file has them.
pid_t lock_holder_of(const struct stat& wanted) {
  std::ifstream list("/proc/locks");
  for (std::string line; std::getline(list, line);) {
    int process = 0;
    unsigned major_number = 0, minor_number = 0;
    unsigned long inode = 0;
    char kind[8] = "";
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %7s %d %x:%x:%lu", kind, &process, &major_number, &minor_number,
                    &inode) != 5)
      continue;
    if (inode == wanted.st_ino && makedev(major_number, minor_number) == wanted.st_dev) return process;
  }
  return -1;
}

std::string lock_holder_text(const std::string& path) {
  const pid_t process = holder_of(path);
  if (process <= 0) return "a process of another host or container";
  return str(program(process), " (process ", process, ")");
}

bool held_by_rank(const std::string& path) {
  const pid_t process = holder_of(path);
  return process > 0 && program(process) == "convoy-rank";
}

}  // namespace convoy
