// Whether this MPI takes pointers to GPU memory: asked of the library itself, which knows how it was built and what is
// switched off (Open MPI: --mca opal_cuda_support 0).
#pragma once

namespace convoy {
bool mpi_takes_cuda();  // after MPI_Init
}
