// The last collectives of each group in a rank's state file: written at each call without a system call, and readable after
// the rank's death, so that calls that did not fit each other can be told by whoever is left.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/control/state_file.h"

namespace convoy {

// The same number is the same call on all ranks of the group.
struct RankCall {
  std::string group;   // its label: "world", "world/0.1"
  int64_t number = 0;  // from 1
  uint64_t hash = 0;   // of all that the ranks must call alike
  std::string call;    // "all_reduce 'bucket 2' float32[1024] sum"
};

// A call as it is noted: short texts that are copied, never kept.
struct CallNote {
  int64_t number = 0;
  uint64_t hash = 0;
  const char* operation = "";      // 15 bytes at most
  const char* name = "";           // 47
  const char* dtype = "";          // 15
  const int64_t* shape = nullptr;  // the first 4 dimensions
  int dimensions = -1;             // -1: the call has no tensor
  const char* more = "";           // reduction or root; 15
};

class CallNotes {
 public:
  explicit CallNotes(const std::string& state_file);  // path of one that stands (StateFile); Error(io)
  ~CallNotes();
  // A place for the calls of one group, for 16 groups; -1 when all are taken. `label`: 31 bytes at most.
  int add_group(const char* label) noexcept;
  // From one thread at a time for each group; nothing for -1. The time of the file's last change stays.
  void called(int group, const CallNote& call) noexcept;

  // What stands in the file, without opening it again: a slow disk must not hold up whoever asks.
  RankPosition position() const;
  std::vector<RankCall> calls() const;

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
};

// By group the last 8 at most, in order of numbers; none where there is no such file.
std::vector<RankCall> read_call_notes(const std::string& state_file);

// Processor time that a rank has spent on its state file in `steps` steps: how often it wrote, by the numbers of its calls,
// times what writing costs, measured here and now.
double state_file_cpu_seconds(const std::vector<RankCall>& calls, int64_t steps);

}  // namespace convoy
