// MemoryGroup: a cgroup of a pipeline's processes that bounds their memory, where one may be made.
//
// The watch (resources.h) knows a pipeline's anonymous memory, which its limit is about, and looks once a second or more often.
// What is taken between two looks, a cgroup bounds. It counts pages of files that the pipeline was the first to touch as well,
// and would rather take those back, and have them read again and again, than end anything: so its bound is a quarter more than
// the limit, and beside that what it holds of files and shared memory now and half a gigabyte for what comes. The bound
// follows them, a few times a second. Versions 1 and 2; no group where the memory controller is not ours to use, as in most
// containers and without root, and then the watch is all there is.
// Threads: one. Failure: none; what cannot be made is null, with the reason.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace convoy {

class MemoryGroup {
 public:
  static constexpr double follow_files_every = 0.25;  // seconds

  // Below this process's own group. `root` stands before /proc and /sys, for tests. Null: `why` says what stands against it.
  static std::unique_ptr<MemoryGroup> make(const std::string& name, int64_t limit, std::string& why,
                                           const std::string& root = "");
  ~MemoryGroup();  // removed; its processes must have ended
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool add(pid_t pid);                      // and what it starts from now on
  void follow_files();                      // every follow_files_every seconds
  int64_t bytes() const { return bytes_; }  // that the group may hold now
  bool killed_some() const;                 // the kernel ended a process of it for want of memory
  const std::string& folder() const { return folder_; }

 private:
  MemoryGroup(std::string folder, bool second, int64_t anonymous)
      : folder_(std::move(folder)), second_(second), anonymous_(anonymous) {}
  bool bound(int64_t bytes);

  std::string folder_;
  bool second_;        // version
  int64_t anonymous_;  // bytes, the part of the bound that is not for files
  int64_t bytes_ = 0;
};

}  // namespace convoy
