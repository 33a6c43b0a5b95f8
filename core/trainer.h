// Trainer: the training loop of one rank. Feeds batches to the strategy, evaluates, saves, reports, and stops when
// all ranks stop.
//
// It uses only the seams and knows no strategy or model by name.
// Threads: one Trainer per rank.
// Errors: throws the exceptions of the strategy, the data and the checkpoints. A non-finite loss is Error(training) on
// every rank after the same step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/context.h"
#include "core/control/fault.h"
#include "core/data/dataset.h"
#include "core/files/files.h"
#include "core/strategy.h"
#include "core/training/membership.h"
#include "core/training/progress.h"

namespace convoy {

struct TrainingComponents {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  Strategy* strategy = nullptr;  // set up already
  // Called on every rank's thread with the steps done: before the first step and after each update. It may
  // communicate if all ranks do the same. An exception ends the training.
  std::function<void(int64_t)> after_update = nullptr;
  // Called on every rank's thread at each InjectPoint of the loop, with the number of that step, epoch, evaluation or
  // save. An exception ends the training.
  std::function<void(InjectPoint, int64_t)> reached = nullptr;
  // Collective. Writes initial values from files; called if no checkpoint is resumed. Null: keeps those of the
  // strategy.
  std::function<void()> initial_values = nullptr;
  FileSystem* files = nullptr;  // writes checkpoints; null: the operating system's
  bool shares_device = false;   // another rank of this process uses the same GPU
  int64_t train_rows = 0;       // epochs use only the first rows of the training split; 0: all
  // State with which the training begins, if any rank keeps one; after a CommError, the state to continue from with
  // other ranks. Null: nothing is kept.
  KeptTraining* kept = nullptr;
};

// Rows of the training split that an epoch uses.
inline int64_t rows_to_train_on(const TrainingComponents& components) {
  const int64_t all = components.data->size(Split::train);
  return components.train_rows > 0 ? std::min(components.train_rows, all) : all;
}

// Collective. Trains until train.epochs or train.max_steps, or until the run is stopped early. Resumes, evaluates and
// writes checkpoints by the configuration.
TrainingResult train(const Context& context, const TrainingComponents& components);

}  // namespace convoy
