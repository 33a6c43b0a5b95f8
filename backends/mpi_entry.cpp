// What the catalogue says of mpi.
#include "backends/entries.h"

namespace convoy {
BackendEntry mpi_entry() {
  BackendEntry entry;
  entry.name = "mpi";
  entry.help =
      "Open MPI: shared memory within a host, the fabric between hosts (one rank per process, under mpirun or srun)";
  entry.built = is_built(entry.name);
  entry.how_to_get = "install Open MPI (Debian: apt-get install libopenmpi-dev openmpi-bin) and build again";
  return entry;
}
}  // namespace convoy
