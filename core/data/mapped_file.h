// A file mapped read-only. Copies share the mapping, which ends with the last of them. Thread-safe.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace convoy {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // Error(io) with the cause; an empty file gives an empty text
  std::string_view text() const;
  const std::string& path() const { return path_; }
  // Waits, `seconds` at most, until no other process holds this file's lock; the lock ends with the mapping. False when
  // the time passed or the file system has no locks.
  bool lock(double seconds) const;

 private:
  struct Mapping;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace convoy
