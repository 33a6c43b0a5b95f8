// Stacks of this process's own threads, taken while it runs: each thread is sent a signal, and its handler writes down the
// return addresses of what it has interrupted.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/control/position.h"

namespace convoy {

// Before other threads start: the handler, and what the unwinder loads at its first use.
void install_stack_handler();

pid_t own_thread_id();

// Of all threads but the caller and idle helpers of libraries, those of `ranks` (thread ids, by place) first. A thread that does not answer
// within a tenth of a second (it blocks signals, or sleeps in the kernel) has no frames. One caller at a time.
// The interrupted threads go on; a sleep of theirs may end early with EINTR.
struct RankThreadId {
  int rank = 0;
  pid_t thread = 0;
};
std::vector<ThreadStack> own_stacks(const std::vector<RankThreadId>& ranks);

// For a process without a control channel: from here on a thread waits for the signal and writes the stacks, the calling
// thread's first, to standard error, each as a line that begins with `prefix`, the last with null. Before other threads start,
// which then leave the signal to that one.
void tell_stacks_at(int signal_number, const std::string& prefix);

}  // namespace convoy
