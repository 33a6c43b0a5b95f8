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

#include "core/error.h"

namespace convoy {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int cause) {
  const char* advice = cause == ENOSPC || cause == EDQUOT  ? "; free some space or choose another --output"
                       : cause == EACCES || cause == EROFS ? "; choose a folder that you may write to with --output"
                                                           : "";
  throw Error(Failure::io, str("cannot ", what, " ", path, ": ", std::strerror(cause), advice));
}

void sync_descriptor(int descriptor, const std::string& path) {
  // Some file systems cannot sync a folder, and say so.
  if (fsync(descriptor) != 0 && errno != EINVAL && errno != ENOTSUP) fail("write (fsync)", path, errno);
}

class SystemFile : public WritableFile {
 public:
  explicit SystemFile(std::string path) : path_(std::move(path)) {
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("create", path_, errno);
  }
  ~SystemFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  void write(const void* data, size_t bytes) override {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, from, std::min<size_t>(bytes, size_t(1) << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", path_, errno);
      from += written;
      bytes -= size_t(written);
    }
  }
  void close() override {
    sync_descriptor(descriptor_, path_);
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", path_, errno);
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

class SystemFiles : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path) override { return std::make_unique<SystemFile>(path); }
  void make_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("create folder", path, error.value());
  }
  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) fail("rename " + from + " to", to, errno);
  }
  void sync_folder(const std::string& path) override {
    const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) fail("open folder", path, errno);
    try {
      sync_descriptor(descriptor, path);
    } catch (...) {
      ::close(descriptor);
      throw;
    }
    ::close(descriptor);
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

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::string& path, size_t at_most) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (!file) fail("open", path, errno);
  std::string text;
  char part[1 << 16];
  while (const size_t bytes = std::fread(part, 1, sizeof part, file.get())) {
    text.append(part, bytes);
    if (text.size() > at_most) throw Error(Failure::io, str(path, " is longer than ", human_bytes(double(at_most))));
  }
  if (std::ferror(file.get())) fail("read", path, errno);
  return text;
}

}  // namespace convoy
