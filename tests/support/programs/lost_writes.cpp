// Library for LD_PRELOAD under convoy's FileSystem: it records which files, names and renames are on the disk, so that
// a test can lose all others after a kill, as a host that loses its power would. It changes no result.
//
// CONVOY_LOST_WRITES names a folder. Calls on paths below CONVOY_LOST_WRITES_OF are recorded in its file `journal`, in
// their order over all processes; tests/support/lost_writes.py reads it and describes the lines. A file that a rename
// replaces is kept there as a link.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <string>

namespace {

template <class Function>
Function next_of(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

const char* variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

// Path of an entry, with its folder resolved; "" if it is not below the folder that is recorded.
std::string recorded_path(int folder, const char* path) {
  const std::string root = variable("CONVOY_LOST_WRITES_OF");
  if (root.empty() || path == nullptr) return "";
  std::string whole = path;
  char resolved[PATH_MAX];
  if (whole.empty() || whole.front() != '/') {
    if (folder == AT_FDCWD) {
      if (getcwd(resolved, sizeof resolved) == nullptr) return "";
    } else {
      const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(folder)).c_str(), resolved, sizeof resolved - 1);
      if (size <= 0) return "";
      resolved[size] = '\0';
    }
    whole = std::string(resolved) + "/" + whole;
  }
  return whole.compare(0, root.size() + 1, root + "/") == 0 ? whole : "";
}

// Path of an open file; "" if it is not below the folder that is recorded.
std::string path_of(int fd) {
  char resolved[PATH_MAX];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), resolved, sizeof resolved - 1);
  if (size <= 0) return "";
  resolved[size] = '\0';
  return recorded_path(AT_FDCWD, resolved);
}

void record(const std::string& line) {
  const int before = errno;
  const std::string path = std::string(variable("CONVOY_LOST_WRITES")) + "/journal";
  static const auto open_next = next_of<int (*)(const char*, int, ...)>("open");
  static const auto write_next = next_of<ssize_t (*)(int, const void*, size_t)>("write");
  const int fd = open_next(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd >= 0) {
    const std::string text = line + "\n";
    if (write_next(fd, text.data(), text.size()) < 0) perror("lost_writes");
    close(fd);
  }
  errno = before;
}

bool exists(int folder, const char* path) {
  struct stat status {};
  const int before = errno;
  const bool found = fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
  errno = before;
  return found;
}

// --- Data: written files by device and inode, because a file may have no name yet ---

std::string identity(const struct stat& status) {
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

void wrote(int fd) {
  struct stat status {};
  const int before = errno;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && !path_of(fd).empty()) record("wrote\t" + identity(status));
  errno = before;
}

void synced(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return;
  const std::string path = path_of(fd);
  if (S_ISREG(status.st_mode) && !path.empty())
    record("synced\t" + identity(status) + "\t" + std::to_string(status.st_size));
  const std::string root = variable("CONVOY_LOST_WRITES_OF");
  char resolved[PATH_MAX];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), resolved, sizeof resolved - 1);
  if (size > 0 && S_ISDIR(status.st_mode)) record("synced-folder\t" + std::string(resolved, static_cast<size_t>(size)));
}

bool has_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

int opened(int folder, const char* path, int flags, mode_t mode) {
  static const auto next = next_of<int (*)(int, const char*, int, ...)>("openat");
  const bool fresh = (flags & O_CREAT) != 0 && !exists(folder, path);
  const int fd = next(folder, path, flags, mode);
  if (fd < 0 || !fresh) return fd;
  if (const std::string whole = recorded_path(folder, path); !whole.empty()) record("create\t" + whole);
  return fd;
}

int renamed(int from_folder, const char* from, int to_folder, const char* to) {
  static const auto next = next_of<int (*)(int, const char*, int, const char*)>("renameat");
  static std::atomic<int> number{0};
  const std::string before = recorded_path(from_folder, from), after = recorded_path(to_folder, to);
  if (before.empty() || after.empty()) return next(from_folder, from, to_folder, to);
  std::string kept =
      std::string(variable("CONVOY_LOST_WRITES")) + "/" + std::to_string(getpid()) + "-" + std::to_string(number++);
  const int error = errno;
  if (linkat(to_folder, to, AT_FDCWD, kept.c_str(), 0) != 0) kept = "-";  // there is no file to replace
  errno = error;
  const int result = next(from_folder, from, to_folder, to);
  if (result == 0) record("rename\t" + before + "\t" + after + "\t" + kept);
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = has_mode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return opened(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = has_mode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return opened(folder, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto next = next_of<ssize_t (*)(int, const void*, size_t)>("write");
  const ssize_t written = next(fd, data, bytes);
  if (written > 0 && fd > STDERR_FILENO) wrote(fd);
  return written;
}

int fsync(int fd) {
  static const auto next = next_of<int (*)(int)>("fsync");
  const int result = next(fd);
  if (result == 0) synced(fd);
  return result;
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  static const auto next = next_of<int (*)(int, const char*, int, const char*, int)>("linkat");
  const int result = next(from_folder, from, to_folder, to, flags);
  if (result != 0) return result;
  if (const std::string path = recorded_path(to_folder, to); !path.empty()) record("create\t" + path);
  return result;
}

int mkdir(const char* path, mode_t mode) {
  static const auto next = next_of<int (*)(const char*, mode_t)>("mkdir");
  const int result = next(path, mode);
  if (result != 0) return result;
  if (const std::string whole = recorded_path(AT_FDCWD, path); !whole.empty()) record("create\t" + whole);
  return result;
}

int rename(const char* from, const char* to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return renamed(from_folder, from, to_folder, to);
}
}
