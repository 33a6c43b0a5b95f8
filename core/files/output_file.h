// OutputFile: a result file of any size, written completely or not at all.
//
// It is written under a temporary name in the folder of the result, flushed to disk, and renamed. Without commit(), and
// if anything fails, the temporary file is removed, and an older result stays as it was.
// Threads: one. Errors: Error(output) if the path cannot be written; Error(io) with path and cause, such as a full
// disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/files/files.h"

namespace convoy {

// Checks a file that an option names, before any work. Error(command_line) if it does not exist or is no regular file,
// Error(io) if it cannot be read. `advice`: what to give, for the message.
void check_input_path(const std::string& path, const std::string& option, const std::string& advice);
// Checks the path of a result before any work. Error(output) if the file exists and `replace` is false, or if it is no
// regular file. Also Error(output) if its folder does not exist or cannot be written. `option`: for messages, "--to".
void check_output_path(const std::string& path, bool replace, const std::string& option);
// Error(command_line) if the path has none of these endings, which choose a format. `option`: as above.
void check_output_ending(const std::string& path, const std::vector<std::string>& endings, const std::string& option);

class OutputFile {
 public:
  OutputFile(const std::string& path, bool replace, FileSystem& files = system_files());
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Small writes are collected.
  void write(const void* data, size_t bytes);
  void write(const std::string& text) { write(text.data(), text.size()); }
  int64_t bytes() const { return bytes_; }  // written so far
  void commit();
  const std::string& path() const { return path_; }

 private:
  void flush();
  // Calls `work`; a failure names the result, not its temporary name, which the user has never seen.
  template <class Work>
  auto naming_result(Work work) -> decltype(work());

  const std::string path_, temporary_;
  const bool replace_;
  FileSystem& files_;
  std::unique_ptr<WritableFile> file_;
  std::string buffer_;
  int64_t bytes_ = 0;
  bool committed_ = false;
};

}  // namespace convoy
