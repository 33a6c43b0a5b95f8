// Files with an n-th operation that fails, counted over writes, closes, renames and all others.
#pragma once
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/files/files.h"

namespace convoy {

class FailingFiles : public FileSystem {
 public:
  FailingFiles(int at, int cause) : left_(at), cause_(cause) {}
  const std::string& failed_at() const { return failed_at_; }  // "" when nothing has

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    count("create", path);
    return std::make_unique<File>(*this, path, system_files().create(path));
  }
  void make_folder(const std::string& path) override {
    count("make_folder", path);
    system_files().make_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    count("rename", from);
    system_files().rename(from, to);
  }
  void sync_folder(const std::string& path) override {
    count("sync_folder", path);
    system_files().sync_folder(path);
  }
  void remove_all(const std::string& path) override { system_files().remove_all(path); }

 private:
  class File : public WritableFile {
   public:
    File(FailingFiles& files, std::string path, std::unique_ptr<WritableFile> file)
        : files_(files), path_(std::move(path)), file_(std::move(file)) {}
    void write(const void* data, size_t bytes) override {
      files_.count("write", path_);
      file_->write(data, bytes);
    }
    void close() override {
      files_.count("close", path_);
      file_->close();
    }

   private:
    FailingFiles& files_;
    std::string path_;
    std::unique_ptr<WritableFile> file_;
  };

  void count(const char* what, const std::string& path) {
    if (left_-- != 0) return;
    failed_at_ = std::string(what) + " " + path;
    throw Error(Failure::io, str("cannot ", what, " ", path, ": ", std::strerror(cause_)));
  }

  int left_;
  int cause_;
  std::string failed_at_;
};

}  // namespace convoy
