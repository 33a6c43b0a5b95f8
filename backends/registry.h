// Fills the registry with the backends. Declares their factories, and the functions of backends/ that other folders
// call directly.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/context.h"
#include "core/registry.h"

namespace convoy {
void register_backends(Registry& registry);

// Key launch.host_memory: allows ranks of one host to share memory (gloo, mpi; shared_segment.h). Call it before any
// backend is created. If one rank forbids it, its group does not share memory.
void allow_shared_memory(bool allowed);

// Loads LibTorch's CUDA half, which takes 0.2 s and 230 MB of a process. Only ranks with a GPU load it, so that many
// CPU ranks on a host start faster. Call it before the first query of a GPU, because LibTorch checks only once for that
// half. Idempotent; any thread. Throws Error(device_missing).
void load_cuda_half();

// Creates graphs for Context::make_graph. Returns null if the device records no graphs: on the CPU, or in a build
// without CUDA's headers.
std::unique_ptr<DeviceGraph> make_device_graph(at::Device device);

// --- MPI that an application has started ---

// Rank of this process in a communicator, given by its Fortran handle. Error(config) if MPI is not running.
struct MpiRank {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this host
  int local_size = 1;
};
MpiRank mpi_rank(int fortran_communicator);
// Collective. Exchanges a text of each process; returns them by rank. CommError(rendezvous) at the time limit.
std::vector<std::string> mpi_exchange_texts(int fortran_communicator, const std::string& text,
                                            std::chrono::milliseconds limit);

// One factory per backend. In a build without a backend, its no_X.cpp provides a factory that throws and names what to
// install.
using BackendFactory = std::function<CommunicatorPtr(const BackendRequest&)>;

BackendFactory local_backend();
BackendFactory gloo_backend();
BackendFactory mpi_backend();
BackendFactory nccl_backend();

// Returns a factory that throws Error(config) with the catalogue's how_to_get, for no_X.cpp.
BackendFactory absent_backend(const std::string& name);

}  // namespace convoy
