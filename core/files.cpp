#include "core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/control/channel.h"
#include "core/error.h"

namespace convoy {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int cause) {
  const char* advice = cause == ENOSPC || cause == EDQUOT  ? "; free some space or choose another --output"
                       : cause == EFBIG                    ? "; raise `ulimit -f`, the largest size of a file"
                       : cause == EACCES || cause == EROFS ? "; choose a folder that you may write to with --output"
                                                           : "";
  throw Error(Failure::io, str("cannot ", what, " ", path, ": ", std::strerror(cause), advice));
}

[[noreturn]] void fail_to_read(const std::string& path, int cause) {
  throw Error(Failure::io, str("cannot open ", path, ": ", std::strerror(cause)));
}

void sync_descriptor(int descriptor, const std::string& path) {
  // Some file systems cannot sync a folder, and say so.
  if (fsync(descriptor) != 0 && errno != EINVAL && errno != ENOTSUP) fail("write (fsync)", path, errno);
}

const char* kind_of(mode_t mode) {
  if (S_ISREG(mode)) return "";
  return S_ISDIR(mode)                    ? "is a folder"
         : S_ISLNK(mode)                  ? "is a symbolic link"
         : S_ISFIFO(mode)                 ? "is a FIFO"
         : S_ISSOCK(mode)                 ? "is a socket"
         : S_ISCHR(mode) || S_ISBLK(mode) ? "is a device"
                                          : "is no regular file";
}

[[noreturn]] void fail_as_irregular(const std::string& path, const char* kind) {
  throw Error(Failure::io, str(path, ": ", kind, ", and a regular file is wanted there; remove it, or name another"));
}

// A folder held open, and a name in it: what another program does to the path between two calls has no effect.
struct Place {
  explicit Place(const std::string& path) {
    const size_t slash = path.rfind('/');
    name = path.substr(slash == std::string::npos ? 0 : slash + 1);
    const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    folder = Descriptor(open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) fail("open", path, errno);
  }
  Descriptor folder;
  std::string name;
};

class SystemFile : public WritableFile {
 public:
  explicit SystemFile(std::string path) : path_(std::move(path)) {
    const Place place(path_);
    descriptor_ = Descriptor(
        openat(place.folder.get(), place.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!descriptor_.valid()) fail("create", path_, errno);
  }

  void write(const void* data, size_t bytes) override {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_.get(), from, std::min<size_t>(bytes, size_t(1) << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", path_, errno);
      from += written;
      bytes -= size_t(written);
    }
  }
  void close() override {
    sync_descriptor(descriptor_.get(), path_);
    if (::close(descriptor_.release()) != 0) fail("close", path_, errno);
  }

 private:
  std::string path_;
  Descriptor descriptor_;
};

class SystemFiles : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path) override { return std::make_unique<SystemFile>(path); }
  void make_folder(const std::string& path) override { make_private_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) fail("rename " + from + " to", to, errno);
  }
  void sync_folder(const std::string& path) override {
    const Descriptor descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor.valid()) fail("open folder", path, errno);
    sync_descriptor(descriptor.get(), path);
  }
  void remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail("remove", path, error.value());
  }
};

}  // namespace

FileSystem& system_files() {
  static SystemFiles files;
  return files;
}

void make_private_folder(const std::string& path) {
  std::string own = path;
  while (own.size() > 1 && own.back() == '/') own.pop_back();
  const size_t slash = own.rfind('/');
  std::error_code error;
  if (slash != std::string::npos && slash > 0) std::filesystem::create_directories(own.substr(0, slash), error);
  if (error) fail("create folder", own.substr(0, slash), error.value());
  if (mkdir(own.c_str(), 0755) == 0) return;
  const int cause = errno;
  struct stat status {};
  if (cause == EEXIST && stat(own.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  fail("create folder", own, cause == EEXIST ? ENOTDIR : cause);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Descriptor open_to_read(const std::string& path) {
  // O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) fail_to_read(path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail_to_read(path, errno);
  if (!S_ISREG(status.st_mode)) fail_as_irregular(path, kind_of(status.st_mode));
  return file;
}

Descriptor open_to_append(const std::string& path) {
  const Place place(path);
  Descriptor file(openat(place.folder.get(), place.name.c_str(),
                         O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644));
  if (!file.valid() && errno == ELOOP) fail_as_irregular(path, kind_of(S_IFLNK));
  if (!file.valid()) fail("open", path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail("open", path, errno);
  if (!S_ISREG(status.st_mode)) fail_as_irregular(path, kind_of(status.st_mode));
  if (status.st_nlink > 1) fail_as_irregular(path, "is a hard link to another file");
  return file;
}

void write_all(int descriptor, const std::string& text, const std::string& path) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path, errno);
    done += size_t(written);
  }
}

std::string read_file(const std::string& path, size_t at_most) {
  const Descriptor file = open_to_read(path);
  std::string text;
  char part[1 << 16];
  while (true) {
    const ssize_t bytes = read(file.get(), part, sizeof part);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) fail("read", path, errno);
    if (bytes == 0) return text;
    text.append(part, size_t(bytes));
    if (text.size() > at_most) throw Error(Failure::io, str(path, " is longer than ", human_bytes(double(at_most))));
  }
}

std::string read_file_if_any(const std::string& path, size_t at_most) noexcept {
  try {
    return read_file(path, at_most);
  } catch (const std::exception&) {
    return "";
  }
}

std::string irregular(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? kind_of(status.st_mode) : "";
}

void write_whole(const std::string& path, const std::string& text, bool lasting, mode_t mode) {
  const Place place(path);
  const std::string temporary = str(".", place.name, ".", random_token());
  // A rename would replace a link or a FIFO silently, and cannot replace a folder.
  if (const std::string kind = irregular(path); !kind.empty()) fail_as_irregular(path, kind.c_str());
  const int at = place.folder.get();
  Descriptor file(openat(at, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file.valid()) fail("write", path, errno);
  try {
    write_all(file.get(), text, path);
    if (lasting) sync_descriptor(file.get(), path);
    if (close(file.release()) != 0) fail("close", path, errno);
    if (renameat(at, temporary.c_str(), at, place.name.c_str()) != 0) fail("rename a new file to", path, errno);
  } catch (...) {
    unlinkat(at, temporary.c_str(), 0);
    throw;
  }
}

}  // namespace convoy
