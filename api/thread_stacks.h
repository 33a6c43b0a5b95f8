// Stacks of this process's running threads. Each thread receives a signal; the handler records the return addresses.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/rank_state/position.h"

namespace convoy {

// Installs the handler and loads the unwinder. Call it before other threads start.
void install_stack_handler();

struct RankThreadId {
  int rank = 0;
  pid_t thread = 0;
};
// Returns the stacks of threads, those of `ranks` first. Leaves out the caller, helper threads of convoy and idle
// threads of libraries. A thread of `ranks` that does not answer within 0.1 s (it blocks signals or sleeps in the
// kernel) has no frames; other such threads are left out. Thread-safe. The interrupted threads continue; a sleep may
// end early with EINTR.
std::vector<ThreadStack> thread_stacks(const std::vector<RankThreadId>& ranks);

// Starts a thread that waits for the signal and writes all stacks to stderr, the calling thread's first. For a process
// without a control channel. Writes one line of JSON per stack and then the line "null", each after `prefix`. Call it
// before other threads start, because they inherit the blocked signal.
void report_stacks_on(int signal_number, const std::string& prefix);

}  // namespace convoy
