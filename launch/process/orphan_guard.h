// Kills orphans: processes that survive a SIGKILLed `convoy` because they left their rank's process group and session.
// The kernel's death signal and a kill of the group do not reach them.
//
// The guard is a small child of `convoy` that waits on a pipe for the end of `convoy`. It recognises orphans by their
// inherited environment variables. Construct it before any thread starts.
#pragma once
#include <sys/types.h>
#include <functional>
#include <vector>

#include "launch/machine/environment.h"
#include "launch/process/event_loop.h"

namespace convoy {

// --- Descendants, including those that left their process group or session ---

// Makes this process the subreaper: orphaned descendants become its children.
void become_subreaper();

// All living descendants of `ancestor`, from /proc, without zombies.
std::vector<pid_t> descendants_of(pid_t ancestor);

// SIGKILLs and reaps every descendant of this process, repeatedly, for at most `milliseconds`. True if none is left.
bool kill_descendants(int milliseconds);

// Notices the end of the launcher that started this process; mpirun's children get no other signal of it.
class ParentWatch {
 public:
  // Calls `gone` once, in the event loop.
  ParentWatch(EventLoop& loop, std::function<void()> gone);
  ~ParentWatch();
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;

 private:
  EventLoop& loop_;
  int fd_ = -1;
};

class OrphanGuard {
 public:
  OrphanGuard();   // no error if the guard process cannot start; then nothing is watched
  ~OrphanGuard();  // every process has ended: stops the guard
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  // Watches all processes that have the same CONVOY_CHANNEL as `environment`, and the same CONVOY_PROCESS if it is set.
  void watch(const Variables& environment);
  // A child of this process. If it is an mpirun, the guard removes its session folder after all have ended.
  void started(pid_t pid);

 private:
  void send(const std::string& line);
  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace convoy
