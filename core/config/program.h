// The key `program`: ranks run a program of the user, which uses the library (include/convoy), instead of convoy-rank.
// The program supplies model, data and loop, so most keys of a run do not apply.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// Returns the options of a run with a program: those of run_options() that apply. The name is optional.
const std::vector<Option>& program_options();

// Returns the tree without the keys that a program excludes. Adds a mistake for each of these keys.
Node without_excluded_keys(Node root, std::vector<ConfigError>& mistakes);

// Names a run without a name after its program's file.
void add_program_name(Node& root);

// Returns the configuration of a run without a file, from the words of a command line and overrides in the form of
// --set. `location`: origin of the words, for messages.
Node program_tree(const std::vector<std::string>& words, const std::vector<std::string>& overrides,
                  const SourceLocation& location);

}  // namespace convoy
