// Files of data: mapped into memory, or several of them by one pattern. Without LibTorch.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// A file mapped read-only. Copies share the mapping; the last copy unmaps it. Thread-safe.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // Error(io) with the cause; an empty file gives an empty text
  std::string_view text() const;
  const std::string& path() const { return path_; }
  // Lets the system take back the memory of these bytes, which were read; they are read again if needed.
  void forget(size_t begin, size_t end) const;
  // XXH3-128 of all bytes, in hex; computed once for all copies.
  const std::string& hash() const;
  // Files up to 1 GiB: the same as hash(). Larger files may not fit into memory: the hash of the size and of 1024
  // evenly spread pieces of 1 MiB, with the first and the last bytes.
  const std::string& fingerprint() const;
  // Waits at most `seconds` until no other process holds this file's lock; the end of the mapping releases it. Returns
  // false at the time limit, or if the file system has no locks.
  bool lock(double seconds) const;

 private:
  struct Mapping;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
};

// Returns the files of a path that may be a pattern (part-*.csv, data/{may,june}.csv), sorted by name. Returns the path
// itself if it has no *, ?, [ or {, or if this file exists. Error(config) if no file matches.
std::vector<std::string> files_of(const std::string& path);

}  // namespace convoy
