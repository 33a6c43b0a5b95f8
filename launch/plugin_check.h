// Plugins before anything starts: who may write the file is checked here, what it offers by `convoy-rank --describe`.
#pragma once
#include <string>

#include "core/config/run_config.h"

namespace convoy {

// Checks every plugin that the configuration names: ConfigError (refused or config) at its key where the file is not
// there or may be written by others. Then `convoy-rank --describe` loads them and checks their options; its message and
// code become the Error's, and the completed configuration replaces `config`.
void check_plugins(RunConfig& config, const std::string& rank_program);

}  // namespace convoy
