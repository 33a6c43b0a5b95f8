// A folder for one test, removed with the object.
#pragma once
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace convoy {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "convoy-test-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder at " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// False in a root that only its owner may enter, such as that of a container: no other user reaches any folder there.
inline bool others_reach_folders() {
  struct stat root {};
  return stat("/", &root) == 0 && (root.st_mode & (S_IXGRP | S_IXOTH)) != 0;
}

}  // namespace convoy
