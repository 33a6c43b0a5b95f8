// What is read of a loaded hwloc topology, this machine's or a saved one's. Included by the reader of topologies only.
#pragma once
#include <hwloc.h>

#include "core/topology.h"

namespace convoy {

// Cores that the topology allows, in its order: sockets, NUMA nodes, cores. Where it tells no cores, processing units.
std::vector<Core> cores_of(hwloc_topology_t topology);

// NVIDIA's PCI devices that are GPUs, by address, with the UUID and memory that their NVML or CUDA objects tell; needs I/O
// objects in the topology.
std::vector<Gpu> gpus_of(hwloc_topology_t topology, const std::vector<Core>& cores);

// Fills numa and socket with those of `near`, where these are one.
void attach(Gpu& gpu, const std::vector<const Core*>& near);

// Memory of the nodes that `cores` are in.
int64_t memory_of(hwloc_topology_t topology, const std::vector<Core>& cores);

}  // namespace convoy
