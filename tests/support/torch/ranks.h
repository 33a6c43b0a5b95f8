// Ranks for tests: threads of this process over `local` or `gloo`, or this process as one rank of an mpirun over `mpi`.
#pragma once
#include <functional>
#include <string>

#include "core/communicator.h"
#include "core/registry.h"

namespace convoy {

// Returns the number of ranks with which mpi can be tested: that of the mpirun, or 0 outside mpirun.
int mpi_ranks();

struct RankGroup {
  std::string backend;
  int size = 1;
  std::chrono::milliseconds timeout{20000};
  std::function<void(const char*)> waiting{};
  bool on_gpus = false;       // rank r on GPU r
  bool on_one_gpu = false;    // all on GPU 0
  int per_host = 0;           // number of consecutive ranks that pretend to share a host; 0: all
  bool by_processes = false;  // this process is one rank of the mpirun, for any backend; always for mpi
};

// Calls `body` on every rank (under mpirun: on this one), each with the world communicator; an exception is a test
// failure with the rank's number. Assertions within `body` count as usual.
void run_ranks(const RankGroup& group, const std::function<void(Communicator&)>& body);

// The backends of this process, created once and destroyed before it ends, because MPI cannot be started twice.
Registry& test_registry();

}  // namespace convoy
