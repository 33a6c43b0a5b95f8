// The key `program`: ranks run a program of the user, which uses the library (include/convoy), instead of convoy-rank.
// The program has model, data and loop, so most keys of a run do not apply.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// Options of a run with a program: those of run_options() that apply. A name is optional.
const std::vector<Option>& program_options();

// The tree without keys that a program excludes. Adds a mistake for each of these.
Node without_excluded_keys(Node root, std::vector<ConfigError>& mistakes);

// Adds a name to a tree without one: that of the program's file.
void add_program_name(Node& root);

// The configuration of a run without a file: the words of a command line, and overrides of the form of --set.
// `place`: where the words come from, for messages.
Node program_tree(const std::vector<std::string>& words, const std::vector<std::string>& overrides,
                  const SourceLocation& place);

}  // namespace convoy
