#include <algorithm>

#include "api/components.h"
#include "api/crash.h"
#include "api/job_impl.h"
#include "backends/registry.h"
#include "core/plugin.h"
#include "core/registry.h"

namespace convoy {
namespace {

// Loads one library. Reports errors at the key that names it.
void load_named(const RunConfig& config, const std::string& key, const std::string& path, Registry& registry) {
  const CrashNote note(str(key, " ", path, ", which is being loaded and registered"));
  const CrashScope here(note);
  try {
    load_plugin(path, registry);
  } catch (const Error& error) {
    throw ConfigError(location_of(config.resolved, key), key, error.what(), error.kind());
  }
}

// Loads the libraries that the configuration names. Returns the name of the one model of model.plugin if the
// configuration does not name a model.
std::string load_plugins(const RunConfig& config, Registry& registry) {
  for (size_t i = 0; i < config.plugins.size(); ++i)
    load_named(config, str("plugins.", i), config.plugins[i], registry);
  const Json& model = config.resolved.at("model");
  if (!model.contains("plugin")) return "";
  const std::vector<std::string> before = registry.catalogues.names("model");
  const std::string path = model["plugin"].get<std::string>();
  load_named(config, "model.plugin", path, registry);
  if (model.contains("name")) return "";
  std::vector<std::string> added;
  for (const std::string& name : registry.catalogues.names("model"))
    if (std::count(before.begin(), before.end(), name) == 0) added.push_back(name);
  if (added.size() == 1) return added.front();
  config.model.options.fail(
      "plugin", added.empty() ? str(path, " registers no model")
                              : str(path, " registers several models; choose one by model.name: ", join(added, ", ")));
}

}  // namespace

Registry make_registry(RunConfig& config, bool few_rows) {
  Registry registry = builtin_registry(few_rows);
  allow_shared_memory(config.launch.host_memory);
  const bool plugins = !config.plugins.empty() || config.resolved.at("model").contains("plugin");
  if (plugins) {
    const std::string model = load_plugins(config, registry);
    config = check_resolved(config.resolved, registry.catalogues, model);
  }
  return registry;
}

}  // namespace convoy
