// --set KEY=VALUE: changes a tree before it is checked.
#pragma once
#include <string>
#include <vector>

#include "core/config/node.h"

namespace convoy {

// KEY is a path such as train.batch.global or data.transforms.0.name (items count from 0; one past the end appends); a
// key that has dots itself stands in double quotes. VALUE is YAML. Marks are "--set KEY=VALUE".
// Throws Error(command_line) for what has no form KEY=VALUE, ConfigError for a path that cannot be followed.
void apply_override(Node& root, const std::string& assignment);
// The file's tree, or an empty map where `path` is "", with these applied in order.
Node read_yaml_file(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace convoy
