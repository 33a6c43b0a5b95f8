// `convoy run CONFIG [--set k=v]… [--output DIR] [--ranks N]`
#pragma once
#include "launch/event_loop.h"
#include "launch/prepare.h"

namespace convoy {

// Reads, checks, plans, starts, supervises; the exit code of FAULTS' list. Throws what is wrong before ranks start.
int run_command(const RunArguments& arguments);

// Its parts where no launcher has started this `convoy`, for other commands that train: a plan for this host, and the run.
Placed placed_here(const PreparedRun& run);
int start_alone(EventLoop& loop, const PreparedRun& run, const Placed& placed);

}  // namespace convoy
