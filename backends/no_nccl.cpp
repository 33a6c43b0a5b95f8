// In place of nccl.cpp where a build has no nccl.
#include "backends/makers.h"

namespace convoy {
BackendFactory nccl_backend() { return absent_backend("nccl"); }
}  // namespace convoy
