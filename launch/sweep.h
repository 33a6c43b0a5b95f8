// Removes what a SIGKILLed mpirun left behind: shared-memory segments and session folders that nobody uses any more.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>

namespace convoy {

struct SweepPlaces {
  std::string shared_memory = "/dev/shm";
  std::string temporary;    // "": TMPDIR, else /tmp
  int oldest_seconds = 60;  // younger things may belong to a job that is just starting
};
// Only this user's. Returns how many things were removed; never throws: what cannot be removed stays.
int sweep_open_mpi(const SweepPlaces& places = {});
// The session folder of an mpirun that has ended, whatever its age, and Open MPI's folder of this user when it is empty then.
void sweep_session(pid_t mpirun, const SweepPlaces& places = {});
// The segment of this very rank, by what Open MPI's variables say of it: for a `convoy` whose rank has ended, in whatever
// way. A rank that ended in order has removed it itself; without those variables nothing happens.
void sweep_own_segment(const std::map<std::string, std::string>& variables, const SweepPlaces& places = {});

}  // namespace convoy
