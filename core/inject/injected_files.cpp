// Around the files of a checkpoint: one call finds the disk full.
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/inject/around.h"

namespace convoy {
namespace {

[[noreturn]] void no_space(const char* what, const std::string& path) {
  throw Error(Failure::io, str("cannot ", what, " ", path, ": ", std::strerror(ENOSPC),
                               "; free some space or choose another --output"));
}

class InjectedFile : public WritableFile {
 public:
  InjectedFile(std::unique_ptr<WritableFile> inner, std::string path, Injector& injector)
      : inner_(std::move(inner)), path_(std::move(path)), injector_(injector) {}

  void write(const void* data, size_t bytes) override {
    if (injector_.fails(Fault::Part::write)) {
      inner_->write(data, bytes / 2);  // what had still room
      no_space("write", path_);
    }
    inner_->write(data, bytes);
  }
  void close() override {
    if (injector_.fails(Fault::Part::fsync)) no_space("write (fsync)", path_);
    inner_->close();
    if (injector_.fails(Fault::Part::close)) no_space("close", path_);
  }

 private:
  std::unique_ptr<WritableFile> inner_;
  std::string path_;
  Injector& injector_;
};

class InjectedFiles : public FileSystem {
 public:
  InjectedFiles(FileSystem& inner, Injector& injector) : inner_(inner), injector_(injector) {}

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<InjectedFile>(inner_.create(path), path, injector_);
  }
  void make_folder(const std::string& path) override { inner_.make_folder(path); }
  void rename(const std::string& from, const std::string& to) override { inner_.rename(from, to); }
  void sync_folder(const std::string& path) override { inner_.sync_folder(path); }
  void remove_all(const std::string& path) override { inner_.remove_all(path); }

 private:
  FileSystem& inner_;
  Injector& injector_;
};

}  // namespace

std::unique_ptr<FileSystem> injected_files(FileSystem& files, Injector& injector) {
  return std::make_unique<InjectedFiles>(files, injector);
}

}  // namespace convoy
