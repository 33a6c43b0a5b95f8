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
  // XXH3-128 of all bytes, in hex; computed once for all copies.
  const std::string& hash() const;
  // The same for a file of up to 1 GiB. Of a larger one, which may not fit into memory, the hash of its size and of 1024
  // pieces of 1 MiB, evenly spread, with the first and the last bytes.
  const std::string& fingerprint() const;
  // Waits, `seconds` at most, until no other process holds this file's lock; the lock ends with the mapping. False when
  // the time passed or the file system has no locks.
  bool lock(double seconds) const;

 private:
  struct Mapping;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace convoy
