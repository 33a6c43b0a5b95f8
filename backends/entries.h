// The entries that catalogue.cpp lists, one X_entry.cpp each. Without LibTorch.
#pragma once
#include <string>

#include "backends/catalogue.h"

namespace convoy {

BackendEntry local_entry();
BackendEntry gloo_entry();
BackendEntry mpi_entry();
BackendEntry nccl_entry();

bool is_built(const std::string& name);

}  // namespace convoy
