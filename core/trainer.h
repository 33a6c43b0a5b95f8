// Trainer: the loop of one rank. Feeds batches to the strategy, evaluates, saves, reports, stops where all stop.
//
// It knows no strategy by name and no model: only the seams. Threads: one Trainer per rank. Failure: throws what the
// strategy, the data or a checkpoint threw, with rank and step already told to the channel's server.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/data/dataset.h"
#include "core/options.h"
#include "core/strategy.h"

namespace convoy {

struct TrainingParts {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  Strategy* strategy = nullptr;   // set up
};

struct TrainingResult {
  bool stopped = false;           // asked to stop; a checkpoint stands
  Json summary;                   // rank 0's part of summary.json: steps, epochs, samples, seconds, metrics, …
};

class Trainer {
 public:
  Trainer(const Context& context, TrainingParts parts);
  TrainingResult run();

 private:
  const Context& context_;
  TrainingParts parts_;
};

}  // namespace convoy
