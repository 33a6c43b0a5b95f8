// The reference strategy's step of a configured model, timed on this process's rows alone: what `--calibrate` measures.
//
// Threads: one rank's thread. Ownership: holds data set, model and optimizer state of one whole replica.
// Failure: what the model, the data set or the strategy throws.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/data/loader.h"
#include "core/metrics/accumulator.h"
#include "core/registry.h"

namespace convoy {

// Seconds a block's forwards took so far.
struct BlockTime {
  std::string name;
  double seconds = 0;
};

class TimedStep {
 public:
  // `config`: of the reference strategy, with an update only where it is flushed (strategy.sync.every beyond reach).
  // `blocks`: of the model that are made, in this order; empty: all.
  TimedStep(const RunConfig& config, const Registry& registry, at::Device device, int threads,
            const std::vector<int64_t>& blocks = {});
  ~TimedStep();
  TimedStep(const TimedStep&) = delete;
  TimedStep& operator=(const TimedStep&) = delete;

  // Batches of so many rows from here on, gathered ahead by a thread as in training; at most as many as the data set has,
  // which is what is returned.
  int64_t batches_of(int64_t rows);
  // Seconds from one step's end to the next one's: the data's wait, forward and backward, and the update where `updates`.
  double step(bool updates);
  // Of the forwards so far; empty on a GPU, where the host runs ahead of them.
  std::vector<BlockTime> block_times() const;

 private:
  void synchronise() const;

  RunConfig config_;
  at::Device device_;
  DatasetPtr data_;
  std::vector<std::shared_ptr<const Transform>> transforms_;
  std::shared_ptr<std::vector<BlockTime>> times_;
  Context context_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Loader> loader_;
  MetricAccumulator metrics_;
  int64_t number_ = 0;  // steps done, of all row counts: keys random draws
};

}  // namespace convoy
