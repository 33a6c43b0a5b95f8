// Checks the checkpoint that train.resume names as a path, before any rank starts.
#pragma once
#include <string>
#include <vector>

#include "core/base/json.h"

namespace convoy {

// Throws ConfigError at train.resume if the path has no checkpoint or no such member. Also throws it at keys of the
// model that differ from the checkpoint's and must be equal. Other differences are allowed: ranks report them, and
// refuse wrong shapes. Returns lines for the user: settings of ensemble members that this run changes; none if `resume`
// is auto or never. `resolved` is this run's configuration with source locations.
std::vector<std::string> check_resume_path(const std::string& resume, const Json& resolved);

struct StoredConfig {
  std::string manifest;  // its path; "": no manifest can be read
  Json config;
  int64_t world_size = 0;  // of the run that wrote the checkpoint; 0: unknown
  int64_t step = 0;
};
// Configuration of one step-N folder; `config` is null if its manifest cannot be read.
StoredConfig stored_config(const std::string& step_folder);
// Configuration of the newest checkpoint with a readable manifest in a run folder.
StoredConfig newest_config(const std::string& folder);
// Configuration of the checkpoint from which a run in `folder` resumes: its newest, else that of the path `resume`.
StoredConfig resumed_config(const std::string& folder, const std::string& resume);

}  // namespace convoy
