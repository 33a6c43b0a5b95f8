// The folder that checkpoints stand in, as rank 0 keeps it: step-N folders, `latest`, temporaries.
//
// A name that begins with a dot is nothing yet or nothing any more (leftover.h). So a kill at any point leaves whole checkpoints under plain names.
// Threads: one thread of one process at a time (the run folder's lock sees to that).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/files.h"

namespace convoy {

class Shelf {
 public:
  Shelf(std::string folder, FileSystem& files) : folder_(std::move(folder)), files_(files) {}

  const std::string& folder() const { return folder_; }
  std::string step_path(int64_t step) const;
  std::string temporary_path(int64_t step, const std::string& token) const;
  std::vector<int64_t> steps() const;  // ascending; only by name, whole or not

  void open_temporary(int64_t step, const std::string& token);
  // Makes the temporary folder `step-N` and the newest. Whatever stood there before stays until it does.
  void publish(int64_t step, const std::string& token);
  // Leaves the newest `keep_last` (all for 0) and always `newest`; a failure is a warning.
  void prune(int64_t keep_last, int64_t newest) noexcept;
  // Removes what earlier attempts left behind; a failure is a warning.
  void sweep() noexcept;

 private:
  void remove_step(int64_t step);

  std::string folder_;
  FileSystem& files_;
};

// Size and hash of every file that a manifest lists. Error(corrupt_data) naming the first that is not as it was.
void check_files(const std::string& step_folder, const Manifest& manifest);

}  // namespace convoy
