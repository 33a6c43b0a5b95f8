// The version, the registration, and what it brought.
#include "core/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/plugin_file.h"

namespace convoy {
namespace {

[[noreturn]] void reject(const std::string& path, const std::string& reason) {
  throw Error(Failure::config, str("plugin ", path, ": ", reason));
}

template <class Function>
Function* symbol(void* library, const std::string& path, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) reject(path, str("has no ", name, ": it has to end with CONVOY_PLUGIN(registry) { … }"));
  return found;
}

using Names = std::map<std::string, std::vector<std::string>>;  // by kind, of the factories

Names factories_of(const Registry& registry) {
  return {{"model", registry.models.names()},
          {"data", registry.datasets.names()},
          {"loss", registry.losses.names()},
          {"transform", registry.transforms.names()}};
}

// Every entry once and with a factory, every new factory with an entry: else a name could not be written, or not be made.
void check_brought(const std::string& path, const Registry& registry, const Names& before) {
  for (const auto& [kind, factories] : factories_of(registry)) {
    const auto listed = registry.catalogues.names(kind);
    std::set<std::string> once;
    for (const auto& name : listed) {
      if (!once.insert(name).second)
        reject(path, str("brings a ", kind, " '", name, "', of which there is one already"));
    }
    const auto& old = before.at(kind);
    const std::set<std::string> known(old.begin(), old.end());
    for (const auto& name : factories) {
      if (known.count(name) == 0 && once.count(name) == 0)
        reject(path, str("adds a factory for the ", kind, " '", name, "' and no entry in registry.catalogues.kinds[\"",
                         kind, "\"]"));
    }
    const std::set<std::string> made(factories.begin(), factories.end());
    for (const auto& name : listed) {
      if (made.count(name) == 0) reject(path, str("describes the ", kind, " '", name, "' and adds no factory for it"));
    }
  }
}

}  // namespace

void load_plugin(const std::string& path, Registry& registry) {
  const std::string file = trusted_plugin_file(path);  // what was checked is what dlopen sees
  if (std::find(registry.plugins.begin(), registry.plugins.end(), file) != registry.plugins.end())
    reject(path, "is named twice; once loads all that it brings (model.plugin or plugins)");

  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    reject(path,
           str("cannot be loaded: ", dlerror(), "; was it built against this build (-Dconvoy_DIR=the build folder)?"));
  const std::string version = symbol<const char*()>(library, path, "convoy_plugin_version")();
  if (version != CONVOY_PLUGIN_VERSION)
    reject(path, str("was built for ", version, ", and this is ", CONVOY_PLUGIN_VERSION,
                     "; build it again against this convoy (-Dconvoy_DIR=the build folder)"));
  const Names before = factories_of(registry);
  symbol<void(Registry&)>(library, path, "convoy_plugin_register")(registry);
  check_brought(path, registry, before);
  registry.plugins.push_back(file);
}

}  // namespace convoy
