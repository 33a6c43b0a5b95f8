#include "launch/plugin_check.h"

#include "core/plugin_file.h"
#include "launch/describe.h"

namespace convoy {

void check_plugins(RunConfig& config, const std::string& rank_program) {
  std::vector<std::pair<std::string, std::string>> named;  // key, path
  for (size_t i = 0; i < config.plugins.size(); ++i) named.emplace_back(str("plugins.", i), config.plugins[i]);
  const Json& model = config.resolved.at("model");
  if (model.contains("plugin") && model["plugin"].is_string())
    named.emplace_back("model.plugin", model["plugin"].get<std::string>());
  if (named.empty()) return;
  for (const auto& [key, path] : named) {
    try {
      trusted_plugin_file(path);
    } catch (const Error& error) {
      throw ConfigError(mark_of(config.resolved, key), key, error.what(), error.kind());
    }
  }
  const Json described = describe_run(rank_program, config.resolved);
  const std::vector<std::string> warnings = config.warnings;
  config = RunConfig::from_resolved(described.at("config"));
  config.warnings = warnings;
}

}  // namespace convoy
