// What a rank process leaves behind when it cannot go on: a backtrace on stderr (the launcher keeps it in logs/rankN.log), or
// the reason where the system is to blame.
#pragma once
#include <string>

#include "core/control/state_file.h"

namespace convoy {
// Until the next call a crash of this thread sets the phase of its rank, which may be one of several of the process, to
// `crashed_phase` (core/control/phases.h). Null: of no rank.
void note_crashes_of_this_thread(StateFile* file, int rank = -1);

// Names code of somebody else's that is called: "model mine, its constructor". Made once, used for many calls.
class CrashNote {
 public:
  explicit CrashNote(const std::string& place);
  const std::string& place() const { return place_; }

 private:
  friend class CrashPlace;
  std::string place_;
  std::string failure_;  // an Abort that says the same, for the rank's state file
};

// While it lives, the report of a crash of this thread contains the note, which must outlive it. Notes nest.
class CrashPlace {
 public:
  explicit CrashPlace(const CrashNote& note);
  ~CrashPlace();
  CrashPlace(const CrashPlace&) = delete;
  CrashPlace& operator=(const CrashPlace&) = delete;

 private:
  const char* outer_place_;
  const char* outer_failure_;
};

// SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT: print a backtrace, then die of the same signal. Async-signal-safe.
// SIGBUS in a mapped file ends the process with 74 and the file's name. std::terminate for want of threads or memory ends it
// with 71 and the limit, also before main().
void install_crash_handlers();
}  // namespace convoy
