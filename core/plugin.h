// Plugins: a model, loss, data set or transform in a shared library of the user.
// A plugin includes only core headers, links convoy::core and ends with CONVOY_PLUGIN(registry) { … }. The body adds
// factories and catalogue entries.
// convoy loads a plugin only from an absolute path, and only if its version matches (docs/extending.md). The file must
// belong to the user or root, and no other user may have write access.
#pragma once
#include <torch/version.h>

#include <string>

#include "core/base/version.h"
#include "core/model.h"
#include "core/registry.h"

// Version text, compiled into convoy and into the plugin. The texts must be equal, because C++ interfaces of convoy
// and LibTorch cross the boundary.
#define CONVOY_PLUGIN_BUILD CONVOY_PLUGIN_VERSION ", LibTorch " TORCH_VERSION

namespace convoy {
// Loads a library, which stays loaded. Throws Error(refused) or Error(config) with the reason and what to type next. A
// plugin may add entries of the kinds model, data, loss and transform.
void load_plugin(const std::string& path, Registry& registry);
}  // namespace convoy

#define CONVOY_PLUGIN(registry)                                                  \
  extern "C" const char* convoy_plugin_version() { return CONVOY_PLUGIN_BUILD; } \
  extern "C" void convoy_plugin_register(::convoy::Registry& registry)
