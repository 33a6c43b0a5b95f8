// MemoryCgroup: a cgroup that bounds the memory of a pipeline's processes, if this process may create one.
//
// A memory limit counts anonymous memory. The watch (resources.h) reads that at least once a second; the cgroup bounds
// growth between two reads. A cgroup also counts pages of files, and the kernel would evict and reread those rather
// than kill a process. So the bound is 1.25 times the limit, plus the present pages of files and shared memory, plus
// 512 MiB. It is updated a few times a second. Supports cgroup versions 1 and 2. Without root, and in most containers,
// there is no cgroup and only the watch. Threads: one. Failure: null with the reason.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace convoy {

class MemoryCgroup {
 public:
  static constexpr double follow_files_every = 0.25;  // seconds

  // Creates a child of this process's cgroup. `root`: prefix of /proc and /sys, for tests. Null: `why` is the reason.
  static std::unique_ptr<MemoryCgroup> make(const std::string& name, int64_t limit, std::string& why,
                                            const std::string& root = "");
  ~MemoryCgroup();  // removes it; its processes must have ended
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  bool add(pid_t pid);                      // and processes that it starts later
  void follow_files();                      // updates the bound; call it every follow_files_every seconds
  int64_t bytes() const { return bytes_; }  // the present bound
  bool killed_some() const;                 // the kernel killed one of its processes at the bound
  const std::string& folder() const { return folder_; }

 private:
  MemoryCgroup(std::string folder, bool v2, int64_t anonymous)
      : folder_(std::move(folder)), v2_(v2), anonymous_(anonymous) {}
  bool bound(int64_t bytes);

  std::string folder_;
  bool v2_;            // cgroup version 2, else 1
  int64_t anonymous_;  // bytes; the bound without its part for files
  int64_t bytes_ = 0;
};

}  // namespace convoy
