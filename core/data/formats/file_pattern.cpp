#include "core/data/formats/file_pattern.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"

namespace convoy {

std::vector<std::string> files_of(const std::string& path) {
  std::error_code none;
  if (path.find_first_of("*?[{") == std::string::npos || std::filesystem::exists(path, none)) return {path};
  glob_t found{};
  std::vector<std::string> files;
  if (glob(path.c_str(), GLOB_BRACE, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (std::filesystem::is_regular_file(found.gl_pathv[i], none)) files.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) throw Error(Failure::config, path, ": no file matches");
  return files;
}

}  // namespace convoy
