// Files that have to be there after a crash. An interface, so that tests make any write, fsync, close or rename fail.
// Threads: stateless; a WritableFile belongs to one thread. Failure: Error(io) naming path and cause.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace convoy {

class WritableFile {
 public:
  virtual ~WritableFile() = default;                       // closes without promising anything
  virtual void write(const void* data, size_t bytes) = 0;  // all of it
  virtual void close() = 0;                                // fsync, then close
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;  // must not be there yet
  virtual void make_folder(const std::string& path) = 0;                      // with its parents; may be there
  virtual void rename(const std::string& from, const std::string& to) = 0;    // replaces a file, not a folder
  virtual void sync_folder(const std::string& path) = 0;                      // fsync of its names
  virtual void remove_all(const std::string& path) = 0;                       // nothing there: fine
};

// The operating system's.
FileSystem& system_files();

// Names in a folder, sorted; empty when it is not there.
std::vector<std::string> names_in(const std::string& folder);
std::string read_file(const std::string& path, size_t at_most);  // Error(io) when it is longer

}  // namespace convoy
