// Resuming from a checkpoint, also of a different configuration: where training continues, and what to report.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/data/contents.h"
#include "core/training/length.h"

namespace convoy {

struct Resumed {
  int64_t step = 0;                // steps done, in the numbering of this run
  bool same_evaluation = true;     // metrics of the checkpoint can be compared with those of this run
  bool same_watched = true;        // early stopping watches the same metric
  std::vector<std::string> notes;  // for the log, in order
  std::string rate_note;           // warning if the learning rate jumps
  std::string split_note;          // warning if evaluation rows may have been trained on
};

// `epoch_rows`: rows that this run reads in an epoch. `data`: contents of this run's data, compared if they have a
// fingerprint.
// With another batch size the run continues at the same row of the same epoch. If that row is inside a batch of this
// run, the batch's first rows are read again.
// Throws Error(corrupt_data) for a position that cannot exist.
Resumed resumed(const CheckpointInfo& info, const RunConfig& config, const TrainingLength& length, int64_t epoch_rows,
                const DataContents& data = {});

}  // namespace convoy
