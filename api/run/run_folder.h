// EmbeddedRunFolder: the run folder of a job without a supervisor. Rank 0 creates and locks it, and writes config.yaml
// and summary.json as `convoy run` does.
//
// Threads: the rank's thread. Errors, on all ranks: Error(output) if another run uses the folder, or if it holds a run
// with other settings; Error(refused) if other users may write it.
#pragma once
#include <string>

#include "core/context.h"
#include "core/files/run_files.h"
#include "core/training/progress.h"

namespace convoy {

class EmbeddedRunFolder {
 public:
  // Collective. Sets `context.folder`.
  EmbeddedRunFolder(Context& context, const std::string& folder);
  // A run without finish() has failed.
  ~EmbeddedRunFolder();
  EmbeddedRunFolder(const EmbeddedRunFolder&) = delete;
  EmbeddedRunFolder& operator=(const EmbeddedRunFolder&) = delete;

  // True if the folder has a run that ended; then nothing is written.
  bool done() const { return done_; }
  // Collective. Writes the summary with the results of all ranks.
  void finish(const TrainingResult& result);

 private:
  std::string open(const std::string& folder);
  void write_end(const TrainingResult& result);

  Context& context_;
  FolderLock lock_;  // rank 0 holds it
  Json summary_;     // rank 0 writes it
  bool done_ = false, finished_ = false;
};

}  // namespace convoy
