#include "core/files/files.h"

#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/base/json.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int cause) {
  const char* advice = cause == ENOSPC || cause == EDQUOT  ? "; free some space or choose another folder"
                       : cause == EFBIG                    ? "; raise `ulimit -f`, the largest size of a file"
                       : cause == EACCES || cause == EROFS ? "; choose a folder that you may write to"
                                                           : "";
  throw Error(Failure::io, "cannot ", what, " ", path, ": ", error_text(cause), advice);
}

[[noreturn]] void fail_to_read(const std::string& path, int cause) {
  throw Error(Failure::io, "cannot open ", path, ": ", error_text(cause));
}

void sync_descriptor(int descriptor, const std::string& path) {
  // Some file systems cannot sync a folder and return these errors.
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
  throw Error(Failure::io, path, ": ", kind,
              ", but convoy needs a regular file there; remove it, or choose another path");
}

// An open folder and a name in it. Other programs cannot redirect the path between two calls.
struct FolderEntry {
  explicit FolderEntry(const std::string& path) {
    const size_t slash = path.rfind('/');
    name = path.substr(slash == std::string::npos ? 0 : slash + 1);
    const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    folder = Descriptor(open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) fail("open", path, errno);
  }
  Descriptor folder;
  std::string name;
};

// The file gets its name when it is complete, so a process that is killed leaves nothing. Some file systems, such as
// NFS, have no files without a name; there the file has its name from the start.
class SystemFile : public WritableFile {
 public:
  SystemFile(std::string path, bool cached) : path_(std::move(path)), entry_(path_), cached_(cached) {
    descriptor_ = Descriptor(openat(entry_.folder.get(), ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644));
    named_ = !descriptor_.valid();
    if (named_)
      descriptor_ = Descriptor(
          openat(entry_.folder.get(), entry_.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!descriptor_.valid()) fail("create", path_, errno);
  }

  void write(const void* data, size_t bytes) override {
    const char* from = static_cast<const char*>(data);
    while (!cached_ && bytes > 0) {
      if (block_ == nullptr) block_.reset(static_cast<char*>(std::aligned_alloc(alignment, block_bytes)));
      if (block_ == nullptr) throw std::bad_alloc();
      const size_t part = std::min(bytes, block_bytes - filled_);
      std::memcpy(block_.get() + filled_, from, part);
      from += part;
      bytes -= part;
      filled_ += part;
      if (filled_ == block_bytes) write_block();
    }
    write_all(from, bytes);
  }
  void close() override {
    if (direct_) set_direct(false);  // the last block is shorter
    write_all(block_.get(), std::exchange(filled_, 0));
    sync_descriptor(descriptor_.get(), path_);
    const std::string unnamed = "/proc/self/fd/" + std::to_string(descriptor_.get());
    if (!named_ && linkat(AT_FDCWD, unnamed.c_str(), entry_.folder.get(), entry_.name.c_str(), AT_SYMLINK_FOLLOW) != 0)
      fail("create", path_, errno);
    if (::close(descriptor_.release()) != 0) fail("close", path_, errno);
  }

 private:
  void write_all(const char* from, size_t bytes) {
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_.get(), from, std::min(bytes, write_ahead));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EINVAL && direct_) {
        set_direct(false);  // the disk wants another alignment
        cached_ = true;
        continue;
      }
      if (written < 0) fail("write", path_, errno);
      from += written;
      bytes -= size_t(written);
      if (cached_) start_writing(size_t(written));
    }
  }
  void write_block() {
    if (!direct_ && !set_direct(true)) cached_ = true;
    write_all(block_.get(), std::exchange(filled_, 0));
  }
  bool set_direct(bool direct) {
    const int flags = fcntl(descriptor_.get(), F_GETFL);
    const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    const bool changed = flags >= 0 && fcntl(descriptor_.get(), F_SETFL, wanted) == 0;
    direct_ = direct && changed;
    return changed;
  }

  // The disk writes the first part of a large file while the next is copied. close() reports errors.
  void start_writing(size_t bytes) {
    waiting_ += bytes;
    if (waiting_ < write_ahead) return;
    sync_file_range(descriptor_.get(), static_cast<off64_t>(started_), static_cast<off64_t>(waiting_),
                    SYNC_FILE_RANGE_WRITE);
    started_ += waiting_;
    waiting_ = 0;
  }

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  static constexpr size_t write_ahead = size_t{16} << 20;
  static constexpr size_t block_bytes = size_t{1} << 20, alignment = 4096;  // for direct writes
  std::string path_;
  FolderEntry entry_;
  size_t started_ = 0, waiting_ = 0;  // bytes whose writing has begun, and later ones
  bool named_ = false;
  bool cached_, direct_ = false;
  std::unique_ptr<char, Free> block_;  // collects the bytes of the next direct write
  size_t filled_ = 0;                  // bytes of it
  Descriptor descriptor_;
};

class SystemFiles : public FileSystem {
 public:
  explicit SystemFiles(bool cached) : cached_(cached) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<SystemFile>(path, cached_);
  }
  void make_folder(const std::string& path) override { make_private_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) fail("rename " + from + " to", to, errno);
  }
  void sync_folder(const std::string& path) override {
    const Descriptor descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor.valid()) fail("open folder", path, errno);
    sync_descriptor(descriptor.get(), path);
  }
  // libtorch.so exports a std::filesystem::remove_all that crashes, and programs that link it get that one.
  void remove_all(const std::string& path) override {
    const auto remove_one = [](const char* name, const struct stat*, int, struct FTW*) {
      return std::remove(name) == 0 || errno == ENOENT ? 0 : -1;
    };
    constexpr int most_descriptors = 16;
    if (nftw(path.c_str(), remove_one, most_descriptors, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
      fail("remove", path, errno);
  }

 private:
  const bool cached_;
};

// --- Write permissions of a folder: owner, mode, group, access list ---

constexpr size_t longest_entry = 1 << 16;  // size of an entry of the user database

// Debian and others give each user a private group of the same name; with umask 002 their folders are group-writable.
bool is_private_group(uid_t owner, gid_t group) {
  std::string user_text(longest_entry, '\0'), group_text(longest_entry, '\0');
  struct passwd user {};
  struct passwd* found_user = nullptr;
  struct group members {};
  struct group* found_group = nullptr;
  if (getpwuid_r(owner, &user, user_text.data(), user_text.size(), &found_user) != 0 || found_user == nullptr)
    return false;
  if (getgrgid_r(group, &members, group_text.data(), group_text.size(), &found_group) != 0 || found_group == nullptr)
    return false;
  if (user.pw_gid != group || std::strcmp(user.pw_name, members.gr_name) != 0) return false;
  for (char** member = members.gr_mem; member != nullptr && *member != nullptr; ++member)
    if (std::strcmp(*member, user.pw_name) != 0) return false;
  return true;
}

bool has_access_list(const std::string& path) {
  return getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) > 0;
}

// True if no other user can reach `folder`: it, or a folder above it, is open to this user only.
bool is_out_of_reach(std::filesystem::path folder) {
  while (true) {
    struct stat status {};
    if (stat(folder.c_str(), &status) == 0 && status.st_uid == geteuid() &&
        (status.st_mode & (S_IXGRP | S_IXOTH)) == 0 && !has_access_list(folder))
      return true;
    if (!folder.has_relative_path()) return false;
    folder = folder.parent_path();
  }
}

bool is_mount_root(const std::string& folder) {
  struct statx facts {};
  if (statx(AT_FDCWD, folder.c_str(), 0, 0, &facts) == 0 && (facts.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0)
    return (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  struct stat here {
  }, above{};  // for kernels before 5.8
  return stat(folder.c_str(), &here) == 0 && stat((folder + "/..").c_str(), &above) == 0 && here.st_dev != above.st_dev;
}

// Users who may write a folder above `folder` may replace it, unless that folder is sticky. Returns a warning, or "".
std::string refuse_writable_parents(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path named = std::filesystem::absolute(folder, error).lexically_normal();
  std::string warning;
  for (const std::filesystem::path& path : {named, std::filesystem::weakly_canonical(named, error)}) {
    std::filesystem::path above = path.has_filename() ? path : path.parent_path();
    while (above.has_relative_path()) {
      above = above.parent_path();
      struct stat status {};
      if (stat(above.c_str(), &status) != 0 || (status.st_mode & S_IWOTH) == 0 || (status.st_mode & S_ISVTX) != 0 ||
          is_out_of_reach(std::filesystem::weakly_canonical(above, error)))
        continue;
      const std::string reason = str(folder, ": every user may write ", above.string(), " and replace this folder");
      if (!is_mount_root(above))
        throw Error(Failure::refused, reason, "; type: ", "chmod o-w ", shell_word(above.string()),
                    ", or choose another --output");
      warning = str("warning: ", reason, "; it is the root of a mount, such as a volume of a container, so convoy ",
                    "assumes that only trusted processes reach it");
    }
  }
  return warning;
}

pid_t owner_of_lock(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0 ? lock_owner_of(file) : -1;
}

std::string program(pid_t process) { return first_line(str("/proc/", process, "/comm")); }

[[noreturn]] void refuse_plugin(Failure kind, const std::string& path, const std::string& reason) {
  throw Error(kind, "plugin ", path, ": ", reason);
}

// A user who may write the file, or replace it, could run code as this user.
void check_writers(const std::string& plugin, const std::string& path, bool folder) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) refuse_plugin(Failure::config, plugin, str(path, ": ", error_text(errno)));
  if (!folder && !S_ISREG(facts.st_mode)) refuse_plugin(Failure::config, plugin, "is no file");
  if (facts.st_uid != geteuid() && facts.st_uid != 0)
    refuse_plugin(
        Failure::refused, plugin,
        str(path, " belongs to user ", facts.st_uid, ", neither you nor root; copy it to a folder of your own"));
  const bool sticky = folder && (facts.st_mode & S_ISVTX) != 0;  // as /tmp: users can replace only files that they own
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
    refuse_plugin(Failure::refused, plugin,
                  str(path, " can be written by others; type: chmod go-w ", shell_word(path)));
}

}  // namespace

FileSystem& system_files() {
  static SystemFiles files(true);
  return files;
}

FileSystem& uncached_files() {
  static SystemFiles files(false);
  return files;
}

Error renamed(const Error& error, const std::string& temporary, const std::string& path) {
  std::string message = error.what();
  for (size_t at = message.find(temporary); at != std::string::npos; at = message.find(temporary, at + path.size()))
    message.replace(at, temporary.size(), path);
  return Error(error.kind(), message);
}

void make_private_folder(const std::string& path) {
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const size_t slash = folder.rfind('/');
  bool made = mkdir(folder.c_str(), 0755) == 0;
  if (!made && errno == ENOENT && slash != std::string::npos && slash > 0) {
    make_private_folder(folder.substr(0, slash));
    made = mkdir(folder.c_str(), 0755) == 0;
  }
  const int cause = errno;
  struct stat status {};
  if (made || (cause == EEXIST && stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode))) return;
  fail("create folder", folder, cause == EEXIST ? ENOTDIR : cause);
}

void require_folder(const std::string& path, const std::string& hint) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) return;
  const bool there = std::filesystem::exists(std::filesystem::symlink_status(path, none));
  throw Error(Failure::command_line, path, there ? ": is no folder; " : ": no such folder; ", hint);
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
  // O_NONBLOCK: otherwise opening a FIFO without a writer blocks for ever.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) fail_to_read(path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail_to_read(path, errno);
  if (!S_ISREG(status.st_mode)) fail_as_irregular(path, kind_of(status.st_mode));
  return file;
}

Descriptor open_to_append(const std::string& path) {
  const FolderEntry entry(path);
  Descriptor file(openat(entry.folder.get(), entry.name.c_str(),
                         O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644));
  if (!file.valid() && errno == ELOOP) fail_as_irregular(path, kind_of(S_IFLNK));
  if (!file.valid()) fail("open", path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail("open", path, errno);
  if (!S_ISREG(status.st_mode)) fail_as_irregular(path, kind_of(status.st_mode));
  if (status.st_nlink > 1) fail_as_irregular(path, "is a hard link to another file");
  return file;
}

Descriptor open_to_append_lines(const std::string& path) {
  Descriptor file = open_to_append(path);
  char last = '\n';
  const off_t size = lseek(file.get(), 0, SEEK_END);
  if (size > 0 && pread(file.get(), &last, 1, size - 1) == 1 && last != '\n' && write(file.get(), "\n", 1) < 0)
    fail("write", path, errno);
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
    if (text.size() > at_most) throw Error(Failure::io, path, " is longer than ", human_bytes(double(at_most)));
  }
}

std::string read_file_if_any(const std::string& path, size_t at_most) noexcept {
  try {
    return read_file(path, at_most);
  } catch (const std::exception&) {
    return "";
  }
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string working_folder() {
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::current_path(failure);
  if (failure == std::errc::no_such_file_or_directory)
    throw Error(Failure::io,
                "the working directory was deleted; type: cd, to an existing folder, and then the same "
                "command with paths that are valid there");
  if (failure) throw Error(Failure::io, "the working directory: ", failure.message());
  return folder.string();
}

std::string absolute_path(const std::string& path) {
  const std::filesystem::path given = path;
  const std::filesystem::path whole = given.is_absolute() ? given : std::filesystem::path(working_folder()) / given;
  return whole.lexically_normal().string();
}

std::string irregular(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? kind_of(status.st_mode) : "";
}

void write_whole(const std::string& path, const std::string& text, bool lasting, mode_t mode) {
  const FolderEntry entry(path);
  const std::string temporary = str(".", entry.name, ".", random_token());
  // A rename would silently replace a link or a FIFO, and cannot replace a folder.
  if (const std::string kind = irregular(path); !kind.empty()) fail_as_irregular(path, kind.c_str());
  const int at = entry.folder.get();
  Descriptor file(openat(at, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file.valid()) fail("write", path, errno);
  // When a file replaces another one, ext4 starts to write it, unless its blocks are allocated before. The next rename
  // waits for this write, for seconds on a busy disk, and a supervisor replaces files each second.
  if (!lasting) fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(text.size()));  // may fail
  try {
    write_all(file.get(), text, path);
    if (lasting) sync_descriptor(file.get(), path);
    if (close(file.release()) != 0) fail("close", path, errno);
    if (renameat(at, temporary.c_str(), at, entry.name.c_str()) != 0) fail("rename a new file to", path, errno);
  } catch (...) {
    unlinkat(at, temporary.c_str(), 0);
    throw;
  }
}

std::string refuse_writable_by_others(const std::string& folder) {
  struct stat status {
  }, link{};
  if (lstat(folder.c_str(), &link) != 0 && errno == ENOENT) return refuse_writable_parents(folder);
  if (stat(folder.c_str(), &status) != 0 || lstat(folder.c_str(), &link) != 0)
    throw Error(Failure::output, folder, ": cannot be examined: ", std::strerror(errno), "; choose another --output");
  const auto refuse = [&](const std::string& reason) { throw Error(Failure::refused, folder, ": ", reason); };
  for (const uid_t owner : {status.st_uid, link.st_uid})
    if (owner != geteuid() && owner != 0)
      refuse(str("belongs to user ", owner, ", who can replace the run's files; choose an --output of your own"));
  const bool others = (status.st_mode & S_IWOTH) != 0;
  const bool group =
      (status.st_mode & S_IWGRP) != 0 && (has_access_list(folder) || !is_private_group(status.st_uid, status.st_gid));
  if (others || group)
    refuse(str(others ? "every user" : str("group ", status.st_gid),
               " may write it and replace the run's files; type: ", "chmod go-w ", shell_word(folder),
               ", or choose another --output"));
  return refuse_writable_parents(folder);
}

void refuse_link(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode))
    throw Error(Failure::refused, path,
                ": is a symbolic link, so the run would write files wherever it leads; "
                "remove it, or choose another --output");
}

// Parses lines such as "1: FLOCK  ADVISORY  WRITE 2061 08:01:1835027 0 EOF", with device and inode of the file.
pid_t lock_owner_of(const struct stat& wanted) {
  std::ifstream list("/proc/locks");
  for (std::string line; std::getline(list, line);) {
    int process = 0;
    unsigned major_number = 0, minor_number = 0;
    unsigned long inode = 0;
    char kind[8] = "";
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %7s %d %x:%x:%lu", kind, &process, &major_number, &minor_number,
                    &inode) != 5)
      continue;
    if (inode == wanted.st_ino && makedev(major_number, minor_number) == wanted.st_dev) return process;
  }
  return -1;
}

std::string lock_owner_text(const std::string& path) {
  const pid_t process = owner_of_lock(path);
  if (process <= 0) return "a process of another host or container";
  return str(program(process), " (process ", process, ")");
}

bool locked_by_rank(const std::string& path) {
  const pid_t process = owner_of_lock(path);
  return process > 0 && program(process) == "convoy-rank";
}

std::string trusted_plugin_file(const std::string& path) {
  if (path.empty() || path.front() != '/')
    refuse_plugin(Failure::config, path, "must be an absolute path, so that no search path decides what is loaded");
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr)
    refuse_plugin(Failure::config, path, str(error_text(errno), "; build it first (docs/extending.md)"));
  const std::string file = resolved;
  check_writers(path, file, false);
  // Check up to the root, as sshd does: a user who may rename a folder of the path can replace it.
  for (size_t end = file.rfind('/'); end != std::string::npos; end = end == 0 ? end - 1 : file.rfind('/', end - 1))
    check_writers(path, file.substr(0, std::max<size_t>(1, end)), true);
  return file;
}

std::vector<std::string> pipeline_folders(const std::string& folder) {
  std::vector<std::string> folders;
  Json summary;
  try {
    summary = parsed_json(read_file(folder + "/summary.json", size_t{64} << 20));
  } catch (const Error&) {
    return folders;
  }
  if (!summary.is_object() || !summary.contains("pipelines") || !summary["pipelines"].is_array()) return folders;
  for (const Json& pipeline : summary["pipelines"])
    if (pipeline.is_object() && pipeline.contains("folder") && pipeline["folder"].is_string())
      folders.push_back(folder + "/" + pipeline["folder"].get<std::string>());
  return folders;
}

bool write_text(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

}  // namespace convoy
