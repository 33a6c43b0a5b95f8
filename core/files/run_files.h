// Folder of a run: no other user can redirect its files, and one run at a time locks it. Threads: any. Failure:
// Error(output) for an unusable folder, Error(refused) for one that others may write.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ensemble_members.h"
#include "core/base/json.h"

namespace convoy {

// Creates the folder and its `logs`, or checks existing ones: they are writable, only the owner may write them, and no
// link or special file is in place of a file of the run. Otherwise ranks would fail one by one, after an epoch. A
// folder that others may write is refused before anything is created. Returns a warning, or "".
// `advice`: how to choose another folder.
std::string create_run_folder(const std::string& folder, const std::string& advice = "give another --output");

// Exclusive lock on a folder: flock on FOLDER/.lock, which the destructor removes.
class FolderLock {
 public:
  FolderLock() = default;
  // Tries to lock the folder; held() is false if another process has the lock.
  explicit FolderLock(const std::string& folder, const std::string& advice = "give another --output");
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  bool held() const { return fd_ >= 0; }

 private:
  void release();
  std::string path_;
  int fd_ = -1;
};

// Calls `use` with each complete line of a JSON Lines file, such as metrics.jsonl, that is an object. Does nothing for
// a file that cannot be read.
void for_each_object(const std::string& path, const std::function<void(const Json&)>& use);

// --- The checkpoint that a user names ---
//
// RUN, RUN@best, RUN@step-40, RUN@member3 or RUN@best@member3. RUN is a run folder, its checkpoints folder or a step-N
// folder.

// Files of a run's checkpoints folder that hold the name of a step-N folder.
inline constexpr char latest_file[] = "latest";
inline constexpr char best_file[] = "best";

// Turns @best and @step-N into the path of the step-N folder. Other paths are unchanged. Without such a run, returns
// the path of the run, which callers report as missing. Error(config) with `key` ("train.resume", "RUN") for a farm,
// for another word after @, and if the run has no best checkpoint or no such step; the message lists those that it has.
MemberPath checkpoint_path(const std::string& text, const std::string& key);
// RUN in one of the forms above, also in a mistyped one.
std::string run_of(const std::string& text);

// Names of a run's checkpoints for a message, newest first: "runs/a@best, runs/a@step-40 and 3 more"; "" if it has
// none. `before`: only older ones; -1: all.
std::string checkpoint_names(const std::string& run, int64_t before = -1);
// Advice for a damaged step-N folder: names older ones.
std::string advice_for_damage(const std::string& step_folder);

// Steps of the step-N folders in a checkpoints folder, ascending; by name only.
std::vector<int64_t> checkpoint_steps(const std::string& folder);
// The checkpoints folder that `path` means: itself, or the one below it; "" if it has none.
std::string checkpoints_folder(const std::string& path);
// The step that FOLDER/best names; nullopt if there is no such file, or if its checkpoint is gone.
std::optional<int64_t> best_step(const std::string& folder);

}  // namespace convoy
