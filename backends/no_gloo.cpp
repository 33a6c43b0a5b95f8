// In place of gloo.cpp where a build has no gloo.
#include "backends/makers.h"

namespace convoy {
BackendFactory gloo_backend() { return absent_backend("gloo"); }
}  // namespace convoy
