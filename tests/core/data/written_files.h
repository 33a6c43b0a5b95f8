// A folder of files that a test writes; removed with the object.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace convoy::testing {

class WrittenFiles {
 public:
  const std::string& folder() const { return folder_.path(); }
  std::string path(const std::string& name) const { return folder_ / name; }
  // `name` may have folders, which are made.
  std::string write(const std::string& name, const std::string& contents) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << contents;
    return path(name);
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace convoy::testing
