// Sends and receives of ranks of one host through lanes of the memory that they share (host_segment.h): a stream of bytes
// from each rank to each other, every message with its length in front. No system call, and two copies at the speed of caches.
//
// Messages of a pair go in the order in which both issued them. One that fits into its lane is gone before it is received.
// A receive of another length than was sent ends the group: CommError(disagreement).
#pragma once
#include <memory>
#include <vector>

#include "backends/host_operations.h"

namespace convoy {

// Of bytes on the CPU, between ranks of a segment that has lanes; never with this rank itself.
HostOperationPtr host_exchange(const std::shared_ptr<HostGroup>& group, const std::vector<Transfer>& transfers);

}  // namespace convoy
