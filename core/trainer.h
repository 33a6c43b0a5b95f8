// Trainer: the training loop of one rank. Feeds batches to the strategy, evaluates, saves, reports, and stops when
// all ranks stop.
//
// It uses only the seams and knows no strategy or model by name. Threads: one Trainer per rank. Errors: throws what
// the strategy, the data or a checkpoint threw. A non-finite loss is Error(training) on every rank after the same
// step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/context.h"
#include "core/data/dataset.h"
#include "core/files/files.h"
#include "core/inject/fault.h"
#include "core/strategy.h"

namespace convoy {

struct TrainingComponents {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  Strategy* strategy = nullptr;  // set up already
  // Called on every rank's thread with the steps done: before the first step and after each update. It may
  // communicate if all ranks do the same. An exception ends the training.
  std::function<void(int64_t)> after_update = nullptr;
  // Called on every rank's thread at each point of the loop, with its number. An exception ends the training.
  std::function<void(InjectPoint, int64_t)> reached = nullptr;
  FileSystem* files = nullptr;  // for writing checkpoints; null: the operating system's
  bool shares_device = false;   // another rank of this process uses the same GPU
  int64_t train_rows = 0;       // epochs use only the first rows of the training split; 0: all
};

struct TrainingResult {
  bool stopped = false;  // a request stopped the run; a checkpoint exists
  Json summary;          // of the job, equal on every rank: steps, epochs, samples, seconds, metrics, …
  Json rank;             // of this rank: waits, CPU, data, bytes sent
};

// Rows of a full global batch; steps of an epoch and of the training.
struct TrainingLength {
  int64_t global_rows = 0;
  int64_t steps_per_epoch = 0;
  int64_t epoch_steps = 0;  // of train.epochs; the largest number if epochs are not limited
  int64_t total_steps = 0;
};

// Rows of the training split that an epoch uses.
inline int64_t rows_to_train_on(const TrainingComponents& components) {
  const int64_t all = components.data->size(Split::train);
  return components.train_rows > 0 ? std::min(components.train_rows, all) : all;
}
// Row-sampling rule of the model, or of member 0; all members read equally many rows.
MemberSample row_sample_of(const Sampling& sampling, const RunConfig& config);
// Rows that the model, or each member of an ensemble, reads in an epoch, if the training split has `rows`.
int64_t rows_per_epoch(const Sampling& sampling, const RunConfig& config, int64_t rows);
TrainingLength training_length(const TrainConfig& train, int64_t rows, int64_t data_degree);
// True after every `every` steps or epochs.
bool due(const Interval& interval, int64_t steps_done, int64_t steps_per_epoch);
// A line that names which of train.epochs and train.max_steps ends the run; "" if only one is set.
std::string length_note(const TrainConfig& train, const TrainingLength& length);

TrainingResult train(const Context& context, const TrainingComponents& components);

}  // namespace convoy
