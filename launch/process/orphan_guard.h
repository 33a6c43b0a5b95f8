// Removes what a SIGKILLed launcher leaves: processes and files.
//
// Orphans are processes that survive a SIGKILLed `convoy` because they left their rank's process group and session.
// The kernel's death signal and a kill of the group do not reach them.
//
// The guard is a small child of `convoy` that waits on a pipe for the end of `convoy`. It recognises orphans by their
// inherited environment variables. Construct it before any thread starts.
#pragma once
#include <sys/types.h>
#include <functional>
#include <map>
#include <string>
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

// --- Leftovers of a SIGKILLed mpirun: shared-memory segments and session folders that no process uses ---

struct LeftoverPaths {
  std::string shared_memory = "/dev/shm";
  std::string temporary;    // "": TMPDIR, else /tmp
  int oldest_seconds = 60;  // younger files may belong to a job that is just starting
};
// Removes this user's leftovers. Returns the number of removed files and folders; ignores errors.
int remove_leftover_open_mpi(const LeftoverPaths& paths = {});
// Removes the session folder of an mpirun that has ended, at any age, and the user's Open MPI folder if it is empty.
void remove_leftover_session(pid_t mpirun, const LeftoverPaths& paths = {});
// Removes the shared-memory segment of one rank, named by Open MPI's variables, after that rank has ended. Does nothing
// if a rank that ended in order has removed it, or if the variables are missing.
void remove_leftover_segment(const std::map<std::string, std::string>& variables, const LeftoverPaths& paths = {});

}  // namespace convoy
