// MemoryGroup: a cgroup of a pipeline's processes that bounds their memory, where one may be made.
//
// The watch (resources.h) knows a pipeline's anonymous memory, which its limit is about, and looks once a second or more often.
// What is taken between two looks, a cgroup bounds: at a quarter more than the limit, since it counts the pages of files that
// the pipeline was the first to touch as well, which the kernel takes back before it ends anything. Versions 1 and 2; no group
// where the memory controller is not ours to use, as in most containers and without root, and then the watch is all there is.
// Threads: one. Failure: none; what cannot be made is null, with the reason.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace convoy {

class MemoryGroup {
 public:
  // Below this process's own group. `root` stands before /proc and /sys, for tests. Null: `why` says what stands against it.
  static std::unique_ptr<MemoryGroup> make(const std::string& name, int64_t limit, std::string& why,
                                           const std::string& root = "");
  ~MemoryGroup();  // removed; its processes must have ended
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool add(pid_t pid);       // and what it starts from now on
  int64_t bytes() const;     // that the group may hold
  bool killed_some() const;  // the kernel ended a process of it for want of memory
  const std::string& folder() const { return folder_; }

 private:
  MemoryGroup(std::string folder, bool second) : folder_(std::move(folder)), second_(second) {}
  std::string folder_;
  bool second_;  // version
};

}  // namespace convoy
