// Which folder a run uses, and that no other run uses it at the same time.
//
// Rules: one whose summary says `done` is never continued or overwritten. Without --output the newest unfinished and
// unlocked runs/NAME, runs/NAME-2, … goes on (resume: auto), else the next free name is taken. With --output an equal
// configuration that is done ends with "already done", any other is refused. An unfinished folder goes on only with a
// configuration that differs in nothing but resumable_keys(). A train.resume: PATH takes a new folder, or an unfinished
// one that began from there.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/control/channel.h"
#include "core/options.h"

namespace convoy {

struct FolderRequest {
  std::string output;  // --output; "" : by name
  std::string root = "runs";
  std::string name;
  std::string resume;                  // auto | never | a path
  Json resolved;                       // with its marks, for messages
  std::string command = "convoy run";  // as typed, without --output and train.resume
  bool grows = false;                  // more is to be done in a folder that is done
};

// An exclusive lock on a folder while it lives (flock on FOLDER/.lock, which is removed at the end).
class FolderLock {
 public:
  FolderLock() = default;
  explicit FolderLock(const std::string& folder);  // held() tells; Error(output) when the folder cannot be written
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  bool held() const { return fd_ >= 0; }

 private:
  void release();
  std::string path_;
  int fd_ = -1;
};

struct RunFolder {
  std::string path;                // absolute
  bool already_done = false;       // nothing to do
  bool continued = false;          // an unfinished run goes on
  int attempt = 0;                 // how often this folder was started before
  int64_t epochs = 0;              // that an older version took by default, for train.epochs; 0: as configured
  std::vector<std::string> notes;  // to be told to the user
  FolderLock lock;
};

// Creates, locks and mends (a `running` that a killed supervisor left becomes `failed`). Throws Error(output) when it
// is locked, cannot be written, or holds a run of another configuration; ConfigError for a train.resume: PATH that
// cannot be used.
RunFolder open_run_folder(const FolderRequest& request);

// Where ranks under other launchers look for the rendezvous file: --output or runs/NAME, whatever is chosen in the end.
std::string requested_folder(const FolderRequest& request);

// Left by whoever notices that the supervisor is gone: FOLDER/failure.json, which only the first one writes. If the
// folder's lock is free, it goes into the summary at once, else the next command on the folder puts it there.
void leave_failure(const std::string& folder, const Abort& cause);

// Removes what ranks that were killed in a save have left. Where the folder is locked and no rank runs.
void sweep_checkpoints(const std::string& folder);

}  // namespace convoy
