// The transport of ranks that share a host: collectives through the memory that they share, the rest over another transport.
//
// Two processes on a core each sum 4 KB in microseconds where sockets take hundreds, and large tensors at the speed of memory.
// Sends and receives take lanes of that memory where ranks are few and on the CPU; what has counts that not all ranks know
// (all-to-all) and barriers go over the inner transport.
#pragma once
#include <memory>

#include "backends/host_operations.h"
#include "backends/transport.h"

namespace convoy {

// Of the world: `inner` itself where the ranks do not share a host (host_segment.h). All ranks call it alike. `engine` drives
// it; null: one of its own.
std::shared_ptr<Transport> over_host_memory(std::shared_ptr<Transport> inner, const BackendRequest& request,
                                            std::shared_ptr<ProgressEngine> engine = nullptr);

}  // namespace convoy
