// What a rank process leaves behind when a signal ends it: a backtrace on stderr (the launcher keeps it in logs/rankN.log).
#pragma once
#include "core/control/state_file.h"

namespace convoy {
// Until the next call a crash of this thread sets the phase of its rank, which may be one of several of the process, to
// `crashed_phase` (core/control/phases.h). Null: of no rank.
void note_crashes_of_this_thread(StateFile* file);

// SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT: print a backtrace, then die of the same signal. Async-signal-safe.
void install_crash_handlers();
}  // namespace convoy
