// A farm inside one mpirun or srun: the launcher's ranks are the slots. The `convoy` of rank 0 serves the control
// channel and owns the queue. The `convoy` of every rank, rank 0 included, is the agent of its slot: it starts
// pipelines there. No slot calls MPI_Init.
#pragma once
#include "launch/farm/config/farm.h"
#include "launch/prepare/run_folder.h"

namespace convoy {

// Runs this process as the rank that `run.as` names. Returns the exit code of the whole farm, on every rank.
int run_in_slots(FarmRun& run);

RunFolderRequest farm_folder(const FarmRun& run);

}  // namespace convoy
