// Resuming from a checkpoint that another configuration may have made: where training continues, and what to report.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/trainer.h"

namespace convoy {

struct Resumed {
  int64_t step = 0;                // steps done, as this run numbers them
  bool same_evaluation = true;     // its figures can be compared with those of this run
  bool same_watched = true;        // early stopping watches the same metric
  std::vector<std::string> notes;  // for the log and the console, in order
  std::string rate_note;           // a warning where the learning rate jumps
};

// `epoch_rows`: rows that this run reads in an epoch. With another batch size the run continues at the same row of the
// same epoch; rows of a batch that this run cannot begin in the middle of are read again. Error(corrupt_data) for a
// position that cannot be.
Resumed resumed(const CheckpointInfo& info, const RunConfig& config, const TrainingLength& length, int64_t epoch_rows);

}  // namespace convoy
