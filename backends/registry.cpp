// The backends by name.
#include "backends/registry.h"

#include "backends/catalogue/catalogue.h"

namespace convoy {

void register_backends(Registry& registry) {
  registry.backends.add("local", local_backend());
  registry.backends.add("gloo", gloo_backend());
  registry.backends.add("mpi", mpi_backend());
  registry.backends.add("nccl", nccl_backend());
}

BackendFactory absent_backend(const std::string& name) {
  return [name](const BackendRequest&) -> CommunicatorPtr {
    for (const BackendEntry& entry : backend_catalogue()) {
      if (entry.name == name)
        throw Error(Failure::config, "backend ", name, " is not in this build; ", entry.how_to_get);
    }
    throw Error(Failure::config, "backend ", name, " is not in this build");
  };
}

}  // namespace convoy
