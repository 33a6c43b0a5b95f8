// Length of a training: steps of an epoch and of the whole run, and the intervals in it. Pure functions.
#pragma once
#include <cstdint>
#include <string>

#include "core/config/run_config.h"
#include "core/strategy.h"

namespace convoy {

// Rows of a full global batch; steps of an epoch and of the training.
struct TrainingLength {
  int64_t global_rows = 0;
  int64_t steps_per_epoch = 0;
  int64_t epoch_steps = 0;  // steps of train.epochs; the largest number if epochs are not limited
  int64_t total_steps = 0;
  bool open_ended = false;  // a program has raised total_steps before, and will probably raise it again

  int64_t epoch_of(int64_t done) const { return (done - 1) / steps_per_epoch + 1; }  // epoch of the last step, from 1
  bool ends_epoch(int64_t done) const { return done % steps_per_epoch == 0; }        // after `done` steps
};

// Returns the row-sampling rule of the model, or of member 0; all members read equally many rows.
MemberSample row_sample_of(const Sampling& sampling, const RunConfig& config);
// Returns how many rows the model, or each member of an ensemble, reads in an epoch, if the training split has `rows`.
int64_t rows_per_epoch(const Sampling& sampling, const RunConfig& config, int64_t rows);
TrainingLength training_length(const TrainConfig& train, int64_t rows, int64_t data_degree);
// True after every `every` steps or epochs.
bool due(const Interval& interval, int64_t steps_done, int64_t steps_per_epoch);
// True if the training has reached the point that `position` names.
bool reached(const Interval& position, int64_t steps_done, int64_t steps_per_epoch);
// Returns a line that names which of train.epochs and train.max_steps ends the run; "" if only one is set.
std::string length_note(const TrainConfig& train, const TrainingLength& length);

}  // namespace convoy
