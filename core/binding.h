// Binding of threads (ranks that share a process, devices of a rank that are cores), and what the kernel says of it
// afterwards.
#pragma once
#include <vector>

namespace convoy {
// Binds the calling thread (and what it will start) to processing units; empty: leaves it as it is. Error(config) when
// the kernel refuses.
void bind_this_thread(const std::vector<int>& cores);
// Processing units the calling thread may run on, ascending: what goes into the summary.
std::vector<int> bound_cores();
}  // namespace convoy
