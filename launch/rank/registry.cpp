#include <set>

#include "backends/registry.h"
#include "core/builtins.h"
#include "core/plugin.h"
#include "launch/catalogues.h"
#include "launch/rank/crash.h"
#include "launch/rank/rank.h"
#include "models/registry.h"
#include "strategies/registry.h"

namespace convoy {
namespace {

std::set<std::string> names_of(const Registry& registry, const std::string& kind) {
  const std::vector<std::string> names = registry.catalogues.names(kind);
  return {names.begin(), names.end()};
}

// A library's refusal, at the key that names it.
void load_named(const RunConfig& config, const std::string& key, const std::string& path, Registry& registry) {
  const CrashNote note(str(key, " ", path, ", which is being loaded and registered"));
  const CrashPlace here(note);
  try {
    load_plugin(path, registry);
  } catch (const Error& error) {
    throw ConfigError(mark_of(config.resolved, key), key, error.what(), error.kind());
  }
}

// Loads the libraries that the configuration names. Returns the one model that model.plugin brought, where the
// configuration does not name it.
std::string load_plugins(const RunConfig& config, Registry& registry) {
  for (size_t i = 0; i < config.plugins.size(); ++i)
    load_named(config, str("plugins.", i), config.plugins[i], registry);
  const Json& model = config.resolved.at("model");
  if (!model.contains("plugin")) return "";
  const std::set<std::string> before = names_of(registry, "model");
  const std::string path = model["plugin"].get<std::string>();
  load_named(config, "model.plugin", path, registry);
  if (model.contains("name")) return "";
  std::vector<std::string> brought;
  for (const std::string& name : registry.catalogues.names("model"))
    if (before.count(name) == 0) brought.push_back(name);
  if (brought.size() == 1) return brought.front();
  config.model.options.fail(
      "plugin", brought.empty()
                    ? str(path, " registers no model")
                    : str(path, " registers several models; choose one by model.name: ", join(brought, ", ")));
}

}  // namespace

Registry make_registry(RunConfig& config) {
  Registry registry;
  registry.catalogues = all_catalogues();
  register_core(registry);
  register_models(registry);
  register_strategies(registry);
  register_backends(registry);
  allow_host_memory(config.resolved.at("launch").value("host_memory", true));
  const bool plugins = !config.plugins.empty() || config.resolved.at("model").contains("plugin");
  if (plugins) {
    const std::string model = load_plugins(config, registry);
    config = check_resolved(config.resolved, registry.catalogues, model);
  }
  return registry;
}

}  // namespace convoy
