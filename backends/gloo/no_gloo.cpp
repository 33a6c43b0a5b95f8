// Replaces gloo.cpp in a build without gloo.
#include "backends/registry.h"

namespace convoy {
BackendFactory gloo_backend() { return absent_backend("gloo"); }
}  // namespace convoy
