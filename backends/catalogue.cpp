// The backends, one line each.
#include "backends/catalogue.h"

#include "backends/entries.h"

namespace convoy {

const std::vector<BackendEntry>& backend_catalogue() {
  static const std::vector<BackendEntry> all = {local_entry(), gloo_entry(), mpi_entry(), nccl_entry()};
  return all;
}

// CONVOY_BUILT_BACKENDS: "local mpi gloo", from the build.
bool is_built(const std::string& name) {
  return str(" ", CONVOY_BUILT_BACKENDS, " ").find(" " + name + " ") != std::string::npos;
}

}  // namespace convoy
