// Overrides: --set KEY=VALUE changes a tree before it is checked.
#pragma once
#include <string>
#include <vector>

#include "core/config/node.h"

namespace convoy {

// Applies one override. KEY is a path such as train.batch.global or data.transforms.0.name. Items count from 0; one
// past the end appends. A key that contains dots is written in double quotes. VALUE is YAML. Source locations become
// "--set KEY=VALUE".
// Throws Error(command_line) if the text is not of the form KEY=VALUE, ConfigError for an invalid path.
void apply_override(Node& root, const std::string& assignment);
// Returns the tree of the file, or an empty map if `path` is "", with the overrides applied in order.
Node read_yaml_file(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace convoy
