// Ends what outlives a `convoy` that was SIGKILLed: processes that left their rank's group and session, which neither the
// kernel's death signal nor a kill of the group reaches.
//
// A small child of `convoy` that waits for its end on a pipe. Processes are known by what they inherit, the environment
// of their rank. Make it before any thread is started.
#pragma once
#include <sys/types.h>

#include "launch/environment.h"

namespace convoy {

class OrphanGuard {
 public:
  OrphanGuard();   // where no process can be made there is no guard, and that is no error
  ~OrphanGuard();  // everything has ended: the guard just goes
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  // From here on: all processes whose environment has the CONVOY_CHANNEL and CONVOY_PROCESS (where it has one) of this.
  void watch(const Variables& environment);

 private:
  void tell(const std::string& line);
  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace convoy
