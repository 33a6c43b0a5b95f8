// A path that may name several files by a pattern: part-*.csv, data/{may,june}.csv. Without LibTorch.
#pragma once
#include <string>
#include <vector>

namespace convoy {

// Sorted by name. A path without *, ?, [ and {, or of a file that exists, is itself. Error(config) if no file matches.
std::vector<std::string> files_of(const std::string& path);

}  // namespace convoy
