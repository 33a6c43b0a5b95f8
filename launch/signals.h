// Actions of `convoy` and `convoy-rank` on each signal; docs/launching.md has the table.
//
// Both replace the default actions that end a process without a word. A signal that was ignored when the program started
// stays ignored, here and in child processes: nohup and the background jobs of scripts rely on it.
#pragma once
#include <signal.h>

#include <vector>

namespace convoy {

// First in main(), before any other thread. Unblocks all signals, since a caller may have blocked some, and gives SIGCHLD its
// default action, without which no child's end is seen. SIGXFSZ becomes the error EFBIG of the write. SIGIO, SIGPROF,
// SIGSTKFLT and real-time signals do nothing. These handlers end with exec: child programs get the default actions.
void settle_signals();

// Signals that ask a run to stop, less those that are ignored. SIGQUIT asks to stop at once.
std::vector<int> stop_signals();

bool is_ignored(int signal);

}  // namespace convoy
