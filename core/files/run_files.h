// Folder of a run: no other user can redirect its files, and one run at a time locks it. Threads: any. Failure:
// Error(output) for an unusable folder, Error(refused) for one that others may write.
#pragma once
#include <string>

namespace convoy {

// Creates the folder and its `logs`, or checks existing ones: they are writable, only the owner may write them, and no
// link or special file is in place of a file of the run. Otherwise ranks would fail one by one, after an epoch. A
// refusal creates nothing. Returns a warning, or "".
// `advice`: how to choose another folder.
std::string create_run_folder(const std::string& folder, const std::string& advice = "give another --output");

// Exclusive lock on a folder: flock on FOLDER/.lock, which the destructor removes.
class FolderLock {
 public:
  FolderLock() = default;
  // Check held() afterwards.
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
