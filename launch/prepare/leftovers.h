// Removes leftovers of a SIGKILLed mpirun: shared-memory segments and session folders that no process uses.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>

namespace convoy {

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
