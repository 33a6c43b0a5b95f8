// `convoy run` of a file that describes several runs: alone on this host, or inside one mpirun or srun, whose ranks are the
// slots.
#pragma once
#include "launch/farm/read.h"

namespace convoy {

// The exit code: 0 all are done, 1 some failed, 143 asked to stop. Throws what is wrong before anything starts.
int run_farm(FarmRun run);

}  // namespace convoy
