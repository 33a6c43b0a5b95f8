// What the catalogue says of local.
#include "backends/entries.h"

namespace convoy {
BackendEntry local_entry() {
  BackendEntry entry;
  entry.name = "local";
  entry.help = "ranks that are threads of one process, reducing through shared memory (CPU; one host)";
  entry.built = is_built(entry.name);
  entry.how_to_get = "it is part of every build";
  entry.threads_only = true;
  return entry;
}
}  // namespace convoy
