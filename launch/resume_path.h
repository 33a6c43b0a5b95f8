// train.resume as a path: the checkpoint that it names, checked before any rank starts.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

// Throws ConfigError at train.resume where it leads to no checkpoint or to no such member, and at the keys of the model
// in which a state cannot differ. All other differences are allowed: ranks report them, and refuse what does not fit in
// shape or numbering. Returns lines for the user: settings of an ensemble's members that this run changes. Nothing
// where `resume` is auto or never. `resolved` is this run's configuration with its marks.
std::vector<std::string> check_resume_path(const std::string& resume, const Json& resolved);

struct StoredConfig {
  std::string manifest;  // its path; "" where none can be read
  Json config;
};
// Of the newest checkpoint in a run folder that has a readable manifest.
StoredConfig newest_config(const std::string& folder);

}  // namespace convoy
