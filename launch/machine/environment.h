// Finds the launcher that started this `convoy`, and its rank there. A pure function of environment variables.
//
// One source gives rank, local rank and size: CONVOY_* first, then torchrun's variables, Open MPI, a Slurm step, PMIx.
// An incomplete set, or a contradiction between two sets that must agree, is an Error(config) that names the variables.
// Variables that were only inherited (from a batch script, an allocation or an outer rank) are reported and ignored.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace convoy {

using Variables = std::map<std::string, std::string>;

enum class Launcher {
  none,      // started alone
  convoy,    // CONVOY_RANK, CONVOY_WORLD_SIZE, CONVOY_LOCAL_RANK: for other launchers
  torchrun,  // RANK, WORLD_SIZE, LOCAL_RANK
  open_mpi,  // OMPI_COMM_WORLD_*
  slurm      // a task of a Slurm step
};
const char* name_of(Launcher launcher);
// True if the launcher's daemon stays the parent of its ranks. Other launchers may start ranks from a shell that ends.
inline bool stays_as_parent(Launcher launcher) { return launcher == Launcher::open_mpi || launcher == Launcher::slurm; }

struct LaunchedAs {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int local_rank = 0;  // among the ranks of this host
  int size = 1;
  int local_size = 0;                  // 0: unknown
  std::string job;                     // equal on all ranks of one launch and different for others; safe in a file name
  bool pmi = false;                    // MPI_Init would find its peers, so that backend mpi is possible
  std::string channel;                 // CONVOY_CHANNEL: this process is an agent of a supervisor outside the launcher
  std::string size_from;               // the variable that gave the size, for messages
  std::vector<std::string> inherited;  // lines for the log: ignored variables, with the reason
};

LaunchedAs launched_as(const Variables& variables);

Variables current_variables();

// Variables without those that a launcher sets for its ranks, so that a separate run can start. Keeps the user's
// settings (OMPI_MCA_*, OMPI_ALLOW_*) and a Slurm allocation, which mpirun needs.
Variables without_ranks(const Variables& variables);

}  // namespace convoy
