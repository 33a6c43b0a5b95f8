// Which launcher started this `convoy`, and which rank it is there. A pure function of environment variables.
//
// One source gives rank, local rank and size alike: CONVOY_* before torchrun's variables, Open MPI, a Slurm step, PMIx.
// A set that is incomplete, or that contradicts another which must agree, is an Error(config) that names the variables.
// What merely came down from a process above (a batch script, an allocation, the rank in which this was started) is told
// and not obeyed.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace convoy {

using Variables = std::map<std::string, std::string>;

enum class Launcher {
  none,      // started alone
  convoy,    // CONVOY_RANK, CONVOY_WORLD_SIZE, CONVOY_LOCAL_RANK: for launchers that we do not know
  torchrun,  // RANK, WORLD_SIZE, LOCAL_RANK
  open_mpi,  // OMPI_COMM_WORLD_*
  slurm,     // a task of a Slurm step
  pmix       // PMIX_RANK alone
};
const char* name_of(Launcher launcher);
// Whether its daemon is the parent of what it starts, as long as that runs: the others may be a shell that ends first.
inline bool stays_as_parent(Launcher launcher) {
  return launcher == Launcher::open_mpi || launcher == Launcher::slurm || launcher == Launcher::pmix;
}

struct LaunchedAs {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int local_rank = 0;  // among the ranks of this host
  int size = 1;
  int local_size = 0;     // 0: not told
  std::string job;        // the same on all ranks of one launch and on no other: safe as part of a file's name
  bool pmi = false;       // MPI_Init would find its peers: backend mpi is possible
  std::string channel;    // CONVOY_CHANNEL: a `convoy` outside the launcher serves, this one is its agent
  std::string size_from;  // the variable that told the size, for messages
  std::vector<std::string> inherited;  // what was not obeyed and why, a line each, to be logged
};

LaunchedAs launched_as(const Variables& variables);

Variables current_variables();

// Without what a launcher told its ranks, so that a run of its own can be started; the user's own settings (OMPI_MCA_*,
// OMPI_ALLOW_*) and a Slurm allocation, which mpirun needs, stay.
Variables without_ranks(const Variables& variables);

}  // namespace convoy
