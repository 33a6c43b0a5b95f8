// Files that a configuration's data set reads, looked for before anything starts. Without LibTorch.
#pragma once
#include <string>

#include "core/options.h"

namespace convoy {

// Throws ConfigError at the key whose file or folder is not there or cannot be read, with what to do. `name` is the data
// set's; of one that a plugin brings nothing is known.
void check_data_files(const std::string& name, const Options& options);

}  // namespace convoy
