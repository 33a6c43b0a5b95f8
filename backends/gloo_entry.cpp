// What the catalogue says of gloo.
#include "backends/entries.h"

namespace convoy {
BackendEntry gloo_entry() {
  BackendEntry entry;
  entry.name = "gloo";
  entry.help = "TCP between processes, through LibTorch's Gloo (CPU; needs nothing but a network interface)";
  entry.built = is_built(entry.name);
  entry.how_to_get = "install gloo's headers (Debian: apt-get install libgloo-dev) and build again";
  return entry;
}
}  // namespace convoy
