// The kernel's list of locks names who holds one on this host. Where it names nobody, a shared lock is tried for a moment:
// on a file system of several hosts that tells of the others.
#include "launch/farm/holder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace convoy {
namespace {

// "1: FLOCK  ADVISORY  WRITE 2061 08:01:1835027 0 EOF", device and inode as the file has them.
pid_t listed_holder(const struct stat& status) {
  std::ifstream list("/proc/locks");
  for (std::string line; std::getline(list, line);) {
    int pid = 0;
    unsigned major_number = 0, minor_number = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s WRITE %d %x:%x:%lu", &pid, &major_number, &minor_number, &inode) != 4)
      continue;
    if (inode == status.st_ino && makedev(major_number, minor_number) == status.st_dev) return pid;
  }
  return -1;
}

}  // namespace

LockHolder lock_holder(const std::string& run_folder) {
  LockHolder holder;
  const int fd = open((run_folder + "/.lock").c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return holder;
  struct stat status {};
  if (fstat(fd, &status) == 0) holder.pid = listed_holder(status);
  holder.held = holder.pid > 0;
  if (!holder.held) {
    holder.held = flock(fd, LOCK_SH | LOCK_NB) != 0;
    holder.pid = -1;
  }
  close(fd);
  return holder;
}

}  // namespace convoy
