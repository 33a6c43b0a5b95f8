#pragma once
#include <string>

// Raised whenever a header that plugins see changes.
#define CONVOY_PLUGIN_VERSION "convoy-3"

namespace convoy {
inline const char* const version = "0.1.0";
}
