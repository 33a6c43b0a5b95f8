// The kernel's list of locks names who holds one on this host. Where it names nobody, a shared lock is tried for a moment:
// on a file system of several hosts that tells of the others.
#include "launch/farm/holder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/lock_holder.h"

namespace convoy {
LockHolder lock_holder(const std::string& run_folder) {
  LockHolder holder;
  const int fd = open((run_folder + "/.lock").c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return holder;
  struct stat status {};
  if (fstat(fd, &status) == 0) holder.pid = lock_holder_of(status);
  holder.held = holder.pid > 0;
  if (!holder.held) {
    holder.held = flock(fd, LOCK_SH | LOCK_NB) != 0;
    holder.pid = -1;
  }
  close(fd);
  return holder;
}

}  // namespace convoy
