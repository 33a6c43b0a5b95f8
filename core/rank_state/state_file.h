// State file of a rank (logs/rankN.state): a mapped file with its position, which survives its death. The rank writes
// it without system calls; `convoy` and tools read it. Fixed size, little-endian, versioned.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace convoy {

struct RankPosition {
  std::string phase;       // "starting", "rendezvous", "loading", "training", "evaluating", "saving", "done"
  int64_t step = -1;       // current step, from 0
  std::string collective;  // the one waited for, or ""
  double seconds = 0;      // unix time of the last change
  std::string failure;     // JSON of an Abort, if the rank could still write it
};

struct StateLayout;  // contents of a state file
struct UnmapState {
  void operator()(StateLayout* layout) const;
};
using StateMapping = std::unique_ptr<StateLayout, UnmapState>;

class StateFile {
 public:
  explicit StateFile(const std::string& path);  // creates; Error(io)
  // Each call is a few stores into the mapping, from any thread or a signal handler. Longer texts are truncated:
  // phase 31 bytes, collective 127, failure 4095 (keep a JSON message below that).
  void phase(const char* name) noexcept;
  void step(int64_t step) noexcept;
  void collective(const char* name) noexcept;  // "" when it is over
  void failure(const char* abort_json) noexcept;

 private:
  StateMapping layout_;
};
std::optional<RankPosition> read_state_file(const std::string& path);

}  // namespace convoy
