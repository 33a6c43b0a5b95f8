#include "core/files/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/text.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr size_t collected = size_t{1} << 18;  // bytes of a write

std::string folder_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string temporary_of(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.parent_path() / str(".", whole.filename().string(), ".tmp-", random_token())).string();
}

}  // namespace

void check_input_path(const std::string& path, const std::string& option, const std::string& advice) {
  struct stat status {};
  const std::string named = str(option, " ", path, ": ");
  if (stat(path.c_str(), &status) != 0)
    throw Error(errno == EACCES ? Failure::io : Failure::command_line, named,
                errno == ENOENT ? std::string("no such file") : error_text(errno), "; ", advice);
  if (!S_ISREG(status.st_mode))
    throw Error(Failure::command_line, named, S_ISDIR(status.st_mode) ? "is a folder" : "is no regular file", "; ",
                advice);
  if (access(path.c_str(), R_OK) != 0)
    throw Error(Failure::io, named, "cannot be read: ", error_text(errno), "; type chmod u+r ", shell_word(path));
}

void check_output_ending(const std::string& path, const std::vector<std::string>& endings, const std::string& option) {
  for (const std::string& ending : endings)
    if (ends_in(path, ending)) return;
  throw Error(Failure::command_line, option, " ", path, ": the name must end in one of ", join(endings, ", "),
              ", which choose the format");
}

void check_output_path(const std::string& path, bool replace, const std::string& option) {
  const std::string name = std::filesystem::path(path).filename().string();
  if (name.empty() || name == "." || name == "..")
    throw Error(Failure::output, option, " ", path, ": names no file; add one, such as ",
                (std::filesystem::path(path) / "out.csv").string());
  if (const std::string kind = irregular(path); !kind.empty())
    throw Error(Failure::output, option, " ", path, ": ", kind, "; name a regular file");
  std::error_code none;
  if (!replace && std::filesystem::exists(path, none))
    throw Error(Failure::output, option, " ", path, ": exists already and is kept; add --force to replace it, or name ",
                "another file");
  const std::string folder = folder_of(path);
  if (!std::filesystem::is_directory(folder, none))
    throw Error(Failure::output, option, " ", path, ": there is no folder ", folder, "; type mkdir -p ",
                shell_word(folder));
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(Failure::output, option, " ", path, ": ", folder, " cannot be written: ", std::strerror(errno),
                "; name a file in another folder");
}

template <class Work>
auto OutputFile::naming_result(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const Error& error) {
    throw renamed(error, temporary_, path_);
  }
}

OutputFile::OutputFile(const std::string& path, bool replace, FileSystem& files)
    : path_(path), temporary_(temporary_of(path)), replace_(replace), files_(files) {
  file_ = naming_result([&] { return files_.create(temporary_); });
  buffer_.reserve(collected);
}

OutputFile::~OutputFile() {
  if (committed_) return;
  file_.reset();
  try {
    files_.remove_all(temporary_);
  } catch (...) {  // the first failure is reported
  }
}

void OutputFile::write(const void* data, size_t bytes) {
  bytes_ += static_cast<int64_t>(bytes);
  if (buffer_.size() + bytes > collected) flush();
  if (bytes >= collected)
    naming_result([&] { file_->write(data, bytes); });
  else
    buffer_.append(static_cast<const char*>(data), bytes);
}

void OutputFile::flush() {
  if (buffer_.empty()) return;
  naming_result([&] { file_->write(buffer_.data(), buffer_.size()); });
  buffer_.clear();
}

void OutputFile::commit() {
  flush();
  naming_result([&] { file_->close(); });
  // Another process may have created the file since check_output_path.
  if (!replace_ && access(path_.c_str(), F_OK) == 0)
    throw Error(Failure::output, path_, ": was created by another process meanwhile and is kept; name another file");
  naming_result([&] { files_.rename(temporary_, path_); });
  committed_ = true;
  files_.sync_folder(folder_of(path_));
}

}  // namespace convoy
