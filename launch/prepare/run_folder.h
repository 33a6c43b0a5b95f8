// Chooses and locks the folder of a run, so that no other run uses it at the same time.
//
// Rules:
// - A folder with the status `done` is never continued or overwritten.
// - Without --output and with resume: auto, the newest unfinished and unlocked runs/NAME, runs/NAME-2, … is continued;
//   without one, the next free name is taken.
// - With --output, an equal configuration that is done ends with "already done"; a different one is refused.
// - An unfinished folder is continued only if configurations differ in resumable_keys() alone.
// - train.resume: PATH takes a new folder, or an unfinished one that began from that path.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/control/channel.h"
#include "core/files/run_files.h"

namespace convoy {

// A command of `convoy run`, for hints. `options` are shell words; hints append further options there.
struct TypedCommand {
  std::string options = "convoy run";
  std::string program = {};  // " -- PROGRAM ARGUMENT…", or ""
};

struct RunFolderRequest {
  std::string output;  // --output; "": chosen by name
  std::string root = "runs";
  std::string name;
  std::string resume;  // auto | never | a path
  Json resolved;       // with source locations, for messages
  TypedCommand command;
  bool grows = false;  // a folder that is done gets more work
};

struct RunFolder {
  std::string path;                // absolute
  bool already_done = false;       // nothing to train
  bool continued = false;          // an unfinished run is continued
  bool created = false;            // the folder did not exist before
  int attempt = 0;                 // number of earlier starts of this folder
  Json train = Json::object();     // length that the folder's run keeps: epochs, max_steps; empty: as configured
  std::vector<std::string> notes;  // lines for the user
  FolderLock lock;
};

// Creates, locks and repairs the folder: the status `running` of a killed supervisor becomes `failed`. Throws
// Error(output) if the folder is locked, cannot be written, or has a run of another configuration. Throws ConfigError
// if the path in train.resume cannot be used.
RunFolder open_run_folder(const RunFolderRequest& request);

// Folder in the temporary folder of this host, for this user only; removed at the end.
class ScratchFolder {
 public:
  // Its name is PREFIX-PROCESS-RANDOM. Error(io) if it cannot be created.
  explicit ScratchFolder(const std::string& prefix);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Folder in which ranks of other launchers look for the rendezvous file: --output or runs/NAME, before the final
// choice.
std::string requested_folder(const RunFolderRequest& request);

// Records the failure after the supervisor is gone: writes FOLDER/failure.json unless it exists. If the folder's lock
// is free, the failure goes into the summary at once, else the next command on the folder moves it there.
void record_failure(const std::string& folder, const Abort& cause);

// Removes temporaries of ranks that were killed during a save. The folder must be locked and no rank may run.
void remove_leftover_checkpoints(const std::string& folder);

}  // namespace convoy
