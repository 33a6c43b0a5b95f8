// train.resume as a path: the configuration that its checkpoint was made with, held against this run's before any rank
// starts.
#pragma once
#include "core/options.h"

namespace convoy {

// Throws ConfigError at the first key that differs and may not: those of resumable_keys() may, and the run's name.
// Nothing where `resume` is auto or never, or leads to no manifest that can be read: ranks say what is wrong with it.
// `resolved` is this run's configuration with its marks.
void check_resume_path(const std::string& resume, const Json& resolved);

}  // namespace convoy
