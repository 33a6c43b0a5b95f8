// Folder of a run: created so that no other user can redirect what the run writes, and locked by one run at a time.
// Threads: any. Failure: Error(output) for a folder that cannot be used, Error(refused) for one that others may write.
#pragma once
#include <string>

namespace convoy {

// Creates the folder and `logs` in it, or checks those that exist: that they can be written, that only the owner may
// write them, and that no link or special file is in the place of a file of the run. Otherwise ranks would fail one by
// one, after an epoch. A refusal leaves nothing behind. Returns a warning, or "".
// `advice`: how to choose another folder.
std::string create_run_folder(const std::string& folder, const std::string& advice = "give another --output");

// Exclusive lock on a folder: flock on FOLDER/.lock, which the destructor removes.
class FolderLock {
 public:
  FolderLock() = default;
  // Check held().
  explicit FolderLock(const std::string& folder, const std::string& advice = "give another --output");
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  bool held() const { return fd_ >= 0; }

 private:
  void release();
  std::string path_;
  int fd_ = -1;
};

}  // namespace convoy
