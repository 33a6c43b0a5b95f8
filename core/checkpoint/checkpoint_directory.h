// CheckpointDirectory: the folder `checkpoints/` of a run, managed by rank 0: step-N folders, `latest`, temporaries.
//
// Names that begin with a dot are temporary (is_leftover in core/files/files.h), so a kill at any point leaves complete
// checkpoints under plain names. Threads: one thread of one process at a time; the run folder lock ensures it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/files/files.h"

namespace convoy {

class CheckpointDirectory {
 public:
  CheckpointDirectory(std::string folder, FileSystem& files) : folder_(std::move(folder)), files_(files) {}

  const std::string& folder() const { return folder_; }
  std::string step_path(int64_t step) const;
  std::string temporary_path(int64_t step, const std::string& token) const;
  std::vector<int64_t> steps() const;  // ascending; by name only, so a checkpoint may be damaged

  void open_temporary(int64_t step, const std::string& token);
  // Renames the temporary folder to `step-N` and makes it the newest. An existing step-N remains until then.
  void publish(int64_t step, const std::string& token);
  // The file `best` names this checkpoint from now on.
  void mark_best(int64_t step, const std::string& token);
  // Keeps the last `keep_last` checkpoints up to step `newest` (0: all), all later ones, and the best. A failure is a
  // warning.
  void prune(int64_t keep_last, int64_t newest) noexcept;
  // Removes temporary files of earlier attempts. A failure is a warning.
  void remove_leftovers() noexcept;

 private:
  void sync_parents();
  void write_pointer(const std::string& temporary, int64_t step);
  void remove_step(int64_t step);

  std::string folder_;
  FileSystem& files_;
  bool parents_synced_ = false;
};

// Checks size and hash of every file that a manifest lists. Error(corrupt_data) naming the first one that differs.
void check_files(const std::string& step_folder, const Manifest& manifest);

}  // namespace convoy
