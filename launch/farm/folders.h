// The folders inside a farm's, and what may be in them already.
#pragma once
#include <optional>
#include <string>

#include "core/farm.h"

namespace convoy {

// There may be one already. Error(output) where none can be made, or where something else has its name.
void make_own_folder(const std::string& path);

// Where the pipeline's folder is to be there may be something else, or a run of somebody else's.
std::optional<ConfigError> occupied(const Pipeline& pipeline, const std::string& folder);
// What came of it in an earlier farm of this folder, against what it is to be now; `summary`: of that folder.
std::optional<ConfigError> differs(const Pipeline& pipeline, const std::string& folder, const Json& summary);

// A run that was killed cannot remove its lock; nobody else holds it then.
void remove_left_lock(const std::string& folder);

}  // namespace convoy
