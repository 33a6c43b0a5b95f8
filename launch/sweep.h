// Removes what a SIGKILLed mpirun left behind: shared-memory segments and session folders that nobody uses any more.
#pragma once
#include <string>

namespace convoy {

struct SweepPlaces {
  std::string shared_memory = "/dev/shm";
  std::string temporary;    // "": TMPDIR, else /tmp
  int oldest_seconds = 60;  // younger things may belong to a job that is just starting
};
// Only this user's. Returns how many things were removed; never throws: what cannot be removed stays.
int sweep_open_mpi(const SweepPlaces& places = {});

}  // namespace convoy
