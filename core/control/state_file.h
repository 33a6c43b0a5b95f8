// A rank's mapped state file (logs/rankN.state): survives its death, so that whoever is left can say where it was.
// Written by the rank without system calls, read by `convoy` and by tools. Fixed size, little-endian, versioned.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace convoy {

struct RankPosition {
  std::string phase;       // "starting", "rendezvous", "loading", "training", "evaluating", "saving", "done"
  int64_t step = -1;       // step under way, from 0
  std::string collective;  // name of the one waited for, or ""
  double seconds = 0;      // unix time of the last change
  std::string failure;     // JSON of an Abort, where the rank could still write it
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

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
};
std::optional<RankPosition> read_state_file(const std::string& path);

}  // namespace convoy
