// Trees of processes as /proc tells them: what each has used of CPU and memory. Cheap: a pass lists /proc, and opens
// only what belongs to a tree or was not there the last time.
//
// A process belongs to the tree of its parent, and stays in it when the parent ends. One whose parent ended before it was
// seen belongs where its process group does. Threads: one. Failure: what cannot be read has just ended.
#pragma once
#include <dirent.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace convoy {

struct MemoryUse {
  int64_t anonymous = 0;  // bytes, resident or swapped out
  int64_t mapped = 0;     // bytes resident of files and shared memory
};

class ProcessTrees {
 public:
  ProcessTrees();
  void add(const std::string& tree, pid_t root);
  void remove(const std::string& tree);

  // Finds what is new, drops what has ended, adds up CPU time. By a pass over /proc; but of few trees nine times out of ten
  // only the known processes are looked at, and what these and this process have as children of their first threads, unless
  // `all` is asked for.
  void refresh(bool all = false);
  // Of the processes of the last refresh, read now.
  MemoryUse memory(const std::string& tree) const;
  double cpu_seconds(const std::string& tree) const;            // up to the last refresh, ended processes included
  std::vector<pid_t> processes(const std::string& tree) const;  // living, as of the last refresh

 private:
  struct Process {
    std::string tree;
    uint64_t started = 0;  // tells a process from a later one of the same id; 0: not looked at yet
    uint64_t ticks = 0;
    bool ended = false;  // not yet waited for
  };
  struct Tree {
    uint64_t ticks = 0;
    std::unordered_set<pid_t> processes;
  };
  struct Stat;
  static bool read_stat(pid_t pid, Stat& stat);
  void look_through_proc();
  void look_below();
  static bool same(const Process& process, const Stat& stat);
  void follow(pid_t pid, Process& process, const Stat& stat);
  void join(pid_t pid, const std::string& tree, const Stat& stat);
  void drop(pid_t pid);
  void place(const std::unordered_map<pid_t, Stat>& fresh);

  struct Closer {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  std::unique_ptr<DIR, Closer> proc_;
  bool swap_ = false;           // this host has any
  bool children_told_ = false;  // the kernel lists a process's children
  uint64_t passes_ = 0;
  std::map<std::string, Tree> trees_;
  std::unordered_map<pid_t, Process> processes_;   // of the trees
  std::unordered_map<pid_t, std::string> groups_;  // process groups of theirs → tree
  std::unordered_set<pid_t> strangers_;
};

}  // namespace convoy
