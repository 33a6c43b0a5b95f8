#pragma once
#include <string>

// Increase it when a header for plugins changes.
#define CONVOY_PLUGIN_VERSION "convoy-4"

namespace convoy {
inline const char* const version = "0.1.0";
}
