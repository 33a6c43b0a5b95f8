// Where temporary files go.
#pragma once
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/text.h"

namespace convoy {

// $TMPDIR, or /tmp. Throws Error(io) where that is no folder.
inline std::filesystem::path temporary_folder() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder;
  const char* named = std::getenv("TMPDIR");
  throw Error(Failure::io, str("TMPDIR", named != nullptr ? str("=", named) : " is not set and /tmp",
                               " is no folder: ", error.message(), "; set TMPDIR to one that may be written"));
}

}  // namespace convoy
