// Plugins before anything starts: who may write the file is checked here, what it offers by `convoy-rank --describe`.
#pragma once
#include <string>

#include "core/config/run_config.h"

namespace convoy {

// Throws Error(refused) unless the library and its folder belong to this user or root and no other may write them;
// ConfigError when there is no such file. The library is not loaded.
void check_plugin_file(const std::string& path, const Mark& mark);

// Checks every plugin that the configuration names. When there is one, `convoy-rank --describe` loads them and checks
// their options; its message and code become the Error's, and the completed configuration replaces `config`.
void check_plugins(RunConfig& config, const std::string& rank_program, const std::string& file);

}  // namespace convoy
