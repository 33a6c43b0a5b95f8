// Files: how all of convoy creates, appends to and reads them.
//
// A FileSystem holds files that must survive a crash; it is an interface, so that tests make any write, fsync, close or
// rename fail. Threads: stateless; a WritableFile belongs to one thread. Failure: Error(io) naming path and cause.
//
// Rules where an attacker can write: a new file gets a random name and O_EXCL, so a planted link is never followed.
// A file that convoy appends to is a regular one with a single name. Nothing waits for a FIFO's other end.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/descriptor.h"

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

// Creates a folder with its missing parents; only the owner may write the last one. May be there already.
void make_private_folder(const std::string& path);

// Names in a folder, sorted; empty when it is not there.
std::vector<std::string> names_in(const std::string& folder);

// Opens a regular file to read; a link may lead to it.
Descriptor open_to_read(const std::string& path);
// Opens a regular file to append (and to read its end), or creates it. Refuses links and files with a second name.
Descriptor open_to_append(const std::string& path);
void write_all(int descriptor, const std::string& text, const std::string& path);

constexpr size_t longest_file = size_t{1} << 30;
std::string read_file(const std::string& path, size_t at_most = longest_file);  // Error(io) when it is longer
// As read_file, but "" where there is no regular file that can be read.
std::string read_file_if_any(const std::string& path, size_t at_most = longest_file) noexcept;

// Replaces a text file through a temporary one, .NAME.RANDOM, and a rename. `lasting`: also flushed to the disk.
void write_whole(const std::string& path, const std::string& text, bool lasting, mode_t mode = 0644);

// Why `path` is no regular file, as "is a folder"; "" where it is one or is not there. Does not follow a link.
std::string irregular(const std::string& path);

// Throws Error(refused) where another user may write `folder`, or owns it. A folder that its group may write passes if the
// group is the owner's own (same name, no other members) and no access list is set.
void refuse_writable_by_others(const std::string& folder);

}  // namespace convoy
