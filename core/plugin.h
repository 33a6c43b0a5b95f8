// Plugins: a model, loss, data set or transform in a shared library of one's own.
//
// A plugin includes core headers only, links convoy::core, and ends with CONVOY_PLUGIN(registry) { … }, whose body adds
// factories and catalogue entries. It is loaded only from an absolute path, owned by the user or root and writable by no
// other, after its version was compared (docs/extending.md).
#pragma once
#include <torch/version.h>

#include <string>

#include "core/model.h"
#include "core/registry.h"
#include "core/version.h"

// Both sides compile this text in; it must be equal, since C++ interfaces of convoy and LibTorch pass between them.
#define CONVOY_PLUGIN_BUILD CONVOY_PLUGIN_VERSION ", LibTorch " TORCH_VERSION

namespace convoy {
// Throws Error(refused) or Error(config) with the reason and what to type next. The library stays loaded. Kinds that a
// plugin may add to: model, data, loss, transform.
void load_plugin(const std::string& path, Registry& registry);
}  // namespace convoy

#define CONVOY_PLUGIN(registry)                                                  \
  extern "C" const char* convoy_plugin_version() { return CONVOY_PLUGIN_BUILD; } \
  extern "C" void convoy_plugin_register(::convoy::Registry& registry)
