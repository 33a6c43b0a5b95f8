// CPU time and memory of process trees, from /proc. Cheap: a pass lists /proc, and opens only entries that belong to a
// tree or are new.
//
// A process joins the tree of its parent, and stays in it when the parent ends. If the parent ended before the process
// was seen, it joins the tree of its process group. Threads: one. Failure: a process that cannot be read has ended.
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
  int64_t mapped = 0;     // resident bytes of files and shared memory
};

class ProcessTrees {
 public:
  ProcessTrees();
  void add(const std::string& tree, pid_t root);
  void remove(const std::string& tree);

  // Finds new processes, drops ended ones, and sums CPU time. With few trees, and without `all`, nine of ten calls read
  // only the known processes and the children of their first threads; the others read all of /proc.
  void refresh(bool all = false);
  // Memory of the processes that the last refresh found, read now.
  MemoryUse memory(const std::string& tree) const;
  double cpu_seconds(const std::string& tree) const;            // up to the last refresh, with ended processes
  std::vector<pid_t> processes(const std::string& tree) const;  // living, as of the last refresh

 private:
  struct Process {
    std::string tree;
    uint64_t started = 0;  // distinguishes processes with the same id; 0: not read yet
    uint64_t ticks = 0;
    bool ended = false;  // a zombie
  };
  struct Tree {
    uint64_t ticks = 0;
    std::unordered_set<pid_t> processes;
  };
  struct Stat;
  static bool read_stat(pid_t pid, Stat& stat);
  void refresh_from_proc();
  void refresh_descendants();
  static bool same(const Process& process, const Stat& stat);
  void update(pid_t pid, Process& process, const Stat& stat);
  void join(pid_t pid, const std::string& tree, const Stat& stat);
  void drop(pid_t pid);
  void assign(const std::unordered_map<pid_t, Stat>& fresh);

  struct Closer {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  std::unique_ptr<DIR, Closer> proc_;
  bool swap_ = false;                // this host has swap
  bool has_children_files_ = false;  // /proc/PID/task/TID/children exists
  uint64_t passes_ = 0;
  std::map<std::string, Tree> trees_;
  std::unordered_map<pid_t, Process> processes_;   // of all trees
  std::unordered_map<pid_t, std::string> groups_;  // their process groups → tree
  std::unordered_set<pid_t> strangers_;            // processes of no tree
};

}  // namespace convoy
