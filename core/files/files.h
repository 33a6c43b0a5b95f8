// Files: the functions with which convoy creates, appends to and reads files.
//
// A FileSystem writes files that must survive a crash. It is an interface, so that tests can make any write, fsync,
// close or rename fail. Threads: stateless; a WritableFile belongs to one thread. Errors: Error(io) with path and
// cause.
//
// Security: a new file gets a random name and O_EXCL, so a planted link is never followed. Appending requires a regular
// file with a single name. Opening a FIFO never blocks.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"

namespace convoy {

// Owns an open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor replaced(std::exchange(fd_, other.release()));
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

class WritableFile {
 public:
  virtual ~WritableFile() = default;                       // without close() the file may not exist afterwards
  virtual void write(const void* data, size_t bytes) = 0;  // writes all bytes
  virtual void close() = 0;                                // fsync; now the file has its name
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;  // must not exist
  virtual void make_folder(const std::string& path) = 0;                      // with missing parents; may exist
  virtual void rename(const std::string& from, const std::string& to) = 0;    // replaces a file, not a folder
  virtual void sync_folder(const std::string& path) = 0;                      // fsync of the folder itself
  virtual void remove_all(const std::string& path) = 0;                       // no error if nothing exists
};

// Returns the files of the operating system.
FileSystem& system_files();
// The same for large files that are not read soon: if the file system allows it, they are written with O_DIRECT. The
// page cache would take memory and memory bandwidth from the training.
FileSystem& uncached_files();

// The same error with `path` in place of a temporary one, which the user has never seen.
Error renamed(const Error& error, const std::string& temporary, const std::string& path);

// Creates a folder and missing parents, writable by the owner only. It may exist.
void make_private_folder(const std::string& path);

// Returns the names in a folder, sorted; none if the folder does not exist.
std::vector<std::string> names_in(const std::string& folder);

// Throws Error(command_line) unless the path that the user named is a folder. `hint`: what to type next.
void require_folder(const std::string& path, const std::string& hint);

// Opens a regular file for reading; follows links.
Descriptor open_to_read(const std::string& path);
// Opens a regular file for appending (and for reading its end), or creates it. Refuses links and files with a second
// name.
Descriptor open_to_append(const std::string& path);
Descriptor open_to_append_lines(const std::string& path);  // first ends a line that a killed process left incomplete
void write_all(int descriptor, const std::string& text, const std::string& path);

constexpr size_t longest_file = size_t{1} << 30;
std::string read_file(const std::string& path, size_t at_most = longest_file);  // Error(io) if it is longer
// Does the same as read_file, but returns "" if no readable regular file exists.
std::string read_file_if_any(const std::string& path, size_t at_most = longest_file) noexcept;
std::string first_line(const std::string& path);  // without '\n'; "" if there is no such file

// Replaces a text file by writing a temporary one (.NAME.RANDOM) and renaming it. `lasting`: also flushes it to disk.
void write_whole(const std::string& path, const std::string& text, bool lasting, mode_t mode = 0644);

// Throws Error(io) with what to type if the working directory was deleted.
std::string working_folder();
std::string absolute_path(const std::string& path);  // removes "." and ".."; keeps links. Throws like working_folder

// Returns why `path` is no regular file, such as "is a folder"; "" if it is one or does not exist. Does not follow
// links.
std::string irregular(const std::string& path);

// Throws Error(refused) if a user other than this one and root owns `folder`, if others may write it, or if every user
// may write a folder above it that is not sticky. A group-writable folder is accepted if the group is the owner's
// private group (same name, no other members) and no access list is set.
// A world-writable folder above `folder` is accepted if no other user can reach it. If it is the root of a mount, it is
// accepted too, and this returns a warning; else "".
// `folder` need not exist: then only the folders above it are checked.
std::string refuse_writable_by_others(const std::string& folder);

// Throws Error(refused) if `path` is a symbolic link.
void refuse_link(const std::string& path);

// --- Temporary files ---

// Returns $TMPDIR, or /tmp. Throws Error(io) if that is no folder.
inline std::filesystem::path temporary_folder() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder;
  const char* named = std::getenv("TMPDIR");
  throw Error(Failure::io, "TMPDIR", named != nullptr ? str("=", named) : " is not set and /tmp",
              " is no folder: ", error.message(), "; set TMPDIR to one that may be written");
}
// Calls `use` with the path of a file to create in that folder, and then removes its name, also after an exception.
template <class Use>
void with_unnamed_file(const Use& use) {
  struct Removal {
    std::filesystem::path path;
    ~Removal() {
      std::error_code none;
      std::filesystem::remove(path, none);
    }
  } const file{temporary_folder() / ("convoy-" + random_token())};
  use(file.path.string());
}

// --- Owners of file locks (flock), from the kernel's list /proc/locks ---

// Returns the process that owns the lock; -1 if there is none or this host does not list it.
pid_t lock_owner_of(const struct stat& file);
// Returns "sleep (process 1234)", or "a process of another host or container".
std::string lock_owner_text(const std::string& path);
// True if a rank owns the lock: it parses the file that the lock protects, and will finish.
bool locked_by_rank(const std::string& path);

// True for names in a checkpoint directory that a killed process may leave: `.step-N.tmp-TOKEN` is being written,
// `.old-…` is being removed; `.latest-TOKEN` becomes `latest`, and `.best-TOKEN` becomes `best`.
inline bool is_leftover(const std::string& name) {
  return begins_with(name, ".step-") || begins_with(name, ".old-") || begins_with(name, ".latest-") ||
         begins_with(name, ".best-");
}

// Returns the run folders of the pipelines of a farm, in order; none if `folder` is not the folder of a farm.
std::vector<std::string> pipeline_folders(const std::string& folder);

// --- Files of plugins ---

// Returns the file to open, with all links resolved, because opening a library runs it.
// Throws Error(config) unless `path` is absolute and leads to a file. Throws Error(refused) unless this user or root
// owns the file and every folder above it, and no other user may write them. A sticky folder such as /tmp may be
// writable.
std::string trusted_plugin_file(const std::string& path);

// Writes all of `text`; false on an error, with errno.
bool write_text(int fd, const std::string& text);

}  // namespace convoy
