// A farm inside one mpirun or srun: the launcher's ranks are the slots. Rank 0's `convoy` serves the control channel and
// holds the queue; every rank's `convoy`, its own too, starts what it is told to. No slot calls MPI_Init.
#pragma once
#include "launch/farm/read.h"
#include "launch/run_folder.h"

namespace convoy {

// As the rank that the environment says; the exit code of the whole farm, on every rank.
int run_in_slots(FarmRun& run);

FolderRequest farm_folder(const FarmRun& run);

}  // namespace convoy
