// The backends, one entry each.

#include "backends/catalogue/catalogue.h"

namespace convoy {
namespace {

// CONVOY_BUILT_BACKENDS comes from the build: "local mpi gloo".
bool is_built(const std::string& name) {
  return str(" ", CONVOY_BUILT_BACKENDS, " ").find(" " + name + " ") != std::string::npos;
}

BackendEntry entry(const std::string& name, const std::string& help, const std::string& how_to_get) {
  BackendEntry made;
  made.name = name;
  made.help = help;
  made.built = is_built(name);
  made.how_to_get = how_to_get;
  return made;
}

std::vector<BackendEntry> entries() {
  BackendEntry local =
      entry("local", "ranks that are threads of one process, reducing through shared memory (CPU; one host)",
            "it is part of every build");
  local.threads_only = true;
  BackendEntry nccl = entry("nccl", "NVIDIA GPUs, through LibTorch's NCCL (one GPU per rank)",
                            "build against a LibTorch with CUDA (the torch wheel from PyPI is one)");
  nccl.needs_gpu = true;
  return {local,
          entry("gloo", "TCP between processes, through LibTorch's Gloo (CPU; needs nothing but a network interface)",
                "install gloo's headers (Debian: apt-get install libgloo-dev) and build again"),
          entry("mpi",
                "Open MPI: shared memory within a host, the fabric between hosts (one rank per process, under mpirun "
                "or srun)",
                "install Open MPI (Debian: apt-get install libopenmpi-dev openmpi-bin) and build again"),
          nccl};
}

}  // namespace

const std::vector<BackendEntry>& backend_catalogue() {
  static const std::vector<BackendEntry> all = entries();
  return all;
}

}  // namespace convoy
