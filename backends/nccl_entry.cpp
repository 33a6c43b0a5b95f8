// What the catalogue says of nccl.
#include "backends/entries.h"

namespace convoy {
BackendEntry nccl_entry() {
  BackendEntry entry;
  entry.name = "nccl";
  entry.help = "NVIDIA GPUs, through LibTorch's NCCL (one GPU per rank)";
  entry.built = is_built(entry.name);
  entry.how_to_get = "build against a LibTorch with CUDA (the torch wheel from PyPI is one)";
  entry.needs_gpu = true;
  return entry;
}
}  // namespace convoy
