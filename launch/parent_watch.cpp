#include "launch/parent_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace convoy {

ParentWatch::ParentWatch(EventLoop& loop, std::function<void()> gone) : loop_(loop) {
  const pid_t parent = getppid();
  fd_ = static_cast<int>(syscall(SYS_pidfd_open, parent, 0));
  if (fd_ < 0 || getppid() != parent) {
    // It ended before it could be watched. Kernels before 5.3 have no pidfd: there the lost channel has to tell.
    if (getppid() != parent) loop_.post(gone);
    return;
  }
  loop_.on_readable(fd_, [this, gone] {
    loop_.forget(fd_);
    gone();
  });
}

ParentWatch::~ParentWatch() {
  if (fd_ < 0) return;
  loop_.forget(fd_);
  close(fd_);
}

}  // namespace convoy
