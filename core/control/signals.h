// Actions of `convoy` and of rank processes on each signal; docs/launching.md has the table.
//
// Both replace the default actions that end a process without a message. A signal that was ignored when the program
// started stays ignored, also in child processes: nohup and background jobs of scripts rely on it.
#pragma once
#include <vector>

namespace convoy {

// Call it first in main(), before any other thread. Unblocks all signals, which a caller may have blocked. Gives
// SIGCHLD its default action, which waiting for children needs. SIGXFSZ becomes the error EFBIG of the write. SIGIO,
// SIGPROF, SIGSTKFLT and real-time signals do nothing. exec resets the handlers: child programs get the default
// actions.
void set_signal_actions();

// Signals that request a stop, without those that are ignored. SIGQUIT requests an immediate stop.
std::vector<int> stop_signals();

bool is_ignored(int signal);

}  // namespace convoy
