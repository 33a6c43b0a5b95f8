// Trainer: the loop of one rank. Feeds batches to the strategy, evaluates, saves, reports, stops where all stop.
//
// It knows no strategy by name and no model: only the seams. Threads: one Trainer per rank. Failure: throws what the
// strategy, the data or a checkpoint threw; a non-finite loss is Error(training) on every rank after the same step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/data/dataset.h"
#include "core/files.h"
#include "core/inject/fault.h"
#include "core/options.h"
#include "core/strategy.h"

namespace convoy {

struct TrainingParts {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  Strategy* strategy = nullptr;  // set up
  // Called on every rank's thread with the steps done: before the first step, and after each that made an update. It may
  // communicate, as long as all ranks do the same; what it throws ends the training.
  std::function<void(int64_t)> after_update = nullptr;
  // Called on every rank's thread as it comes to each point of the loop, with its number; what it throws ends the training.
  std::function<void(InjectPoint, int64_t)> reached = nullptr;
  FileSystem* files = nullptr;  // that checkpoints are written through; null: the system's
  bool shares_device = false;   // another rank of this process has the same GPU
  int64_t train_rows = 0;       // first rows of the training split that epochs are made of; 0: all
};

struct TrainingResult {
  bool stopped = false;  // asked to stop; a checkpoint stands
  Json summary;          // the job's figures, on every rank the same: steps, epochs, samples, seconds, metrics, …
  Json rank;             // this rank's: waits, CPU, data, bytes sent
};

// Rows of a full global batch, and how many steps an epoch and the training have.
struct TrainingLength {
  int64_t global_rows = 0;
  int64_t steps_per_epoch = 0;
  int64_t epoch_steps = 0;  // of train.epochs; the largest number where that is not given
  int64_t total_steps = 0;
};
// Rows of the training split that epochs are made of.
inline int64_t rows_to_train_on(const TrainingParts& parts) {
  const int64_t all = parts.data->size(Split::train);
  return parts.train_rows > 0 ? std::min(parts.train_rows, all) : all;
}
// How the one model draws its rows, or member 0: all members read equally many.
MemberDraw draw_read(const Sampling& sampling, const RunConfig& config);
// Of `rows` of the training split, those that the one model, or each member of an ensemble, reads in an epoch.
int64_t rows_read(const Sampling& sampling, const RunConfig& config, int64_t rows);
TrainingLength training_length(const TrainConfig& train, int64_t rows, int64_t data_degree);
// True at the end of every `every`-th step or epoch.
bool due(const Interval& interval, int64_t steps_done, int64_t steps_per_epoch);
// Which of train.epochs and train.max_steps ends the run; "" where only one is given, or both end it at the same step.
std::string length_note(const TrainConfig& train, const TrainingLength& length);

TrainingResult train(const Context& context, const TrainingParts& parts);

}  // namespace convoy
