// The transport of ranks that share a host: collectives through the memory that they share, the rest over another transport.
//
// Two processes on a core each sum 4 KB in microseconds where sockets take hundreds, and large tensors at the speed of memory.
// What has counts that not all ranks know (all-to-all), sends, receives and barriers go over the inner transport.
#pragma once
#include <memory>

#include "backends/host_operations.h"
#include "backends/transport.h"

namespace convoy {

// `inner` itself where the ranks do not share a host (host_segment.h). All ranks of the group call it alike.
std::shared_ptr<Transport> over_host_memory(std::shared_ptr<Transport> inner, const BackendRequest& request, int rank,
                                            int size);

}  // namespace convoy
