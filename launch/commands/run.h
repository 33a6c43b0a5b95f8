// `convoy run CONFIG [--set k=v]… [--output DIR] [--ranks N]`
#pragma once
#include "launch/prepare.h"

namespace convoy {
// Reads, checks, plans, starts, supervises; the exit code of FAULTS' list. Throws what is wrong before ranks start.
int run_command(const RunArguments& arguments);
}  // namespace convoy
