// The transport of ranks on several hosts: within a host through shared memory, and between hosts by one rank of each.
// So each byte crosses the network once per host and not once per rank.
//
// This applies to all-reduce, all-gather, reduce-scatter and broadcast. The group must have the same number of
// consecutive ranks, at least two, on each host. Other operations and other groups use the inner transport.
// A sum is formed in rank order within a host, and then by the inner transport. Results are equal on all ranks.
// Cf. hierarchical all-reduce: Jia et al., Highly Scalable Deep Learning Training System with Mixed-Precision, 2018.
#pragma once
#include <memory>

#include "backends/communicator/shared_memory_operations.h"
#include "backends/communicator/transport.h"

namespace convoy {

// Collective over the world. On one host it returns the transport of over_shared_memory.
std::shared_ptr<Transport> over_hosts(std::shared_ptr<Transport> inner, const BackendRequest& request);

}  // namespace convoy
