// Texts of `convoy run --help` that come from the catalogues, and what an unknown command is answered.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// Top-level keys with their lines of help, and every name that a component may have; refers to `convoy list`.
std::string configuration_help(const Catalogues& catalogues);

// Error(command_line) naming `word` and the nearest of `commands`.
[[noreturn]] void unknown_command(const std::string& word, const std::vector<std::string>& commands);

}  // namespace convoy
