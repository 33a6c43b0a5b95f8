// Actions of `convoy` and of rank processes on each signal; docs/launching.md has the table.
//
// Both replace the default actions that end a process without a message. A signal that was ignored at the start stays
// ignored, also in child processes: nohup and background jobs of scripts rely on it.
#pragma once
#include <vector>

namespace convoy {

// Call it first in main(), before other threads exist. Unblocks all signals, because a caller may have blocked them.
// Resets SIGCHLD, which waiting for children needs. SIGXFSZ becomes the error EFBIG of the write. SIGIO, SIGPROF,
// SIGSTKFLT and real-time signals do nothing. exec resets the handlers, so child programs get the default actions.
void set_signal_actions();

// Returns the signals that request a stop, without ignored ones. SIGQUIT requests an immediate stop.
std::vector<int> stop_signals();

bool is_ignored(int signal);

}  // namespace convoy
