// State file of a rank (logs/rankN.state): a mapped file with its position, which is readable after the rank's death.
// The rank writes it without system calls; `convoy` and tools read it. Fixed size, little-endian, versioned.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace convoy {

struct RankPosition {
  std::string phase;       // "starting", "rendezvous", "loading", "training", "evaluating", "saving", "done"
  int64_t step = -1;       // current step, from 0
  std::string collective;  // collective for which the rank waits, or ""
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

// --- Crash notes: user code that a thread runs, for reports of crashes and of exit() ---

// Names the user code that runs next: "model mine, its constructor". Created once, used for many calls.
class CrashNote {
 public:
  explicit CrashNote(const std::string& text);
  const std::string& text() const { return text_; }

 private:
  friend class CrashScope;
  std::string text_;
  std::string failure_;  // the same note as an Abort, for the rank's state file
};

// Text and failure of the innermost CrashScope of this thread; null without one. Async-signal-safe.
struct CurrentCrashNote {
  const char* text = nullptr;
  const char* failure = nullptr;  // JSON of an Abort
};
CurrentCrashNote current_crash_note() noexcept;

// Adds the note to crash reports of this thread during its lifetime. The note must outlive it. Scopes nest.
class CrashScope {
 public:
  explicit CrashScope(const CrashNote& note);
  ~CrashScope();
  CrashScope(const CrashScope&) = delete;
  CrashScope& operator=(const CrashScope&) = delete;

 private:
  CurrentCrashNote outer_;
};

}  // namespace convoy
