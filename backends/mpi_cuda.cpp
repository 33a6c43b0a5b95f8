#include "backends/mpi_cuda.h"

#include <mpi.h>

// Open MPI's extensions; other libraries have no such file, or no such extension in it.
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace convoy {

bool mpi_takes_cuda() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace convoy
