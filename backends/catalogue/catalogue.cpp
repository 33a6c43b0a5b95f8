// The backends, one entry each.

#include "backends/catalogue/catalogue.h"

#include "core/base/error.h"

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
  local.no_lost_rank = "with backend local all ranks are threads of one process; set backend: gloo";
  BackendEntry gloo =
      entry("gloo", "TCP between processes, through LibTorch's Gloo (CPU; needs nothing but a network interface)",
            "install gloo's headers (Debian: apt-get install libgloo-dev) and build again");
  gloo.no_lost_rank = "";
  BackendEntry mpi =
      entry("mpi",
            "Open MPI: shared memory within a host, the fabric between hosts (one rank per process, under mpirun or "
            "srun)",
            "install Open MPI (Debian: apt-get install libopenmpi-dev openmpi-bin) and build again");
  mpi.by_mpirun = true;
  mpi.no_lost_rank = "MPI ends all ranks when one dies; set backend: gloo";
  BackendEntry nccl = entry("nccl", "NVIDIA GPUs, through LibTorch's NCCL (one GPU per rank)",
                            "build against a LibTorch with CUDA (the torch wheel from PyPI is one)");
  nccl.needs_gpu = true;
  nccl.no_lost_rank = "with backend nccl a GPU may have used part of a sum of gradients before the loss is known";
  return {local, gloo, mpi, nccl};
}

}  // namespace

const std::vector<BackendEntry>& backend_catalogue() {
  static const std::vector<BackendEntry> all = entries();
  return all;
}

const BackendEntry& backend_entry(const std::string& name) {
  for (const BackendEntry& entry : backend_catalogue())
    if (entry.name == name) return entry;
  throw Error(Failure::internal, "backend '", name, "' is not in the catalogue");
}

}  // namespace convoy
