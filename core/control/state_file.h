// A rank's mapped state file (logs/rankN.state): survives its death, so that whoever is left can say where it was.
// Written by the rank without system calls, read by `convoy` and by tools. Fixed size, little-endian, versioned.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

// The last collective that a rank has called in one group: the same number is the same call on all ranks of the group.
struct RankCall {
  std::string group;   // label of the group: "world", "world/0.1"
  int64_t number = 0;  // from 1
  uint64_t hash = 0;   // of all that the ranks must call alike
  std::string call;    // "all_reduce 'bucket 2' float32[1024] sum"
};

struct RankPosition {
  // "starting", "rendezvous", "loading", "loader", "forward/backward", "optimizer", "evaluating", "saving", "done"
  std::string phase;
  int64_t step = -1;            // step under way, from 0
  std::string collective;       // name of the one waited for, or ""
  double seconds = 0;           // unix time of the last change
  std::string failure;          // JSON of an Abort, where the rank could still write it
  std::vector<RankCall> calls;  // of each group that has called anything
};

// A collective as it is noted at each call: short texts that are copied, never kept.
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

class StateFile {
 public:
  explicit StateFile(const std::string& path);  // creates; Error(io)
  ~StateFile();
  // Each is a few stores into the mapping, callable from any thread and from a signal handler. Longer texts are cut:
  // phase 31 bytes, collective 127, failure 4095 (so keep a JSON message below that).
  void phase(const char* name) noexcept;
  void step(int64_t step) noexcept;
  void collective(const char* name) noexcept;  // "" when it is over
  void failure(const char* abort_json) noexcept;

  // A place for the calls of one group, for 16 groups; -1 when all are taken. `label`: 31 bytes at most.
  int add_group(const char* label) noexcept;
  // From one thread at a time for each group; nothing for -1. The time of the last change stays.
  void called(int group, const CallNote& call) noexcept;

  RankPosition position() const;

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
};
std::optional<RankPosition> read_state_file(const std::string& path);

}  // namespace convoy
