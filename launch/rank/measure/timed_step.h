// Measurements for `--calibrate` and `convoy bench`: exchanges of a group, and the reference strategy's step of a
// configured model on this process's rows alone.
//
// Threads: one rank's thread. Ownership: owns data set, model and optimizer state of one whole replica.
// Failure: exceptions of the model, the data set or the strategy.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/context.h"
#include "core/data/loader.h"
#include "core/files/limits.h"
#include "core/metrics/accumulator.h"
#include "core/registry.h"
#include "core/strategy.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

using Clock = std::chrono::steady_clock;

struct ExchangeTimes {
  std::vector<double> seconds;  // one value per exchange, on this rank
  double busy = 0;              // CPU time of this process ÷ elapsed time
};

// Waits until the device has done its work; at once for a CPU.
void synchronise(const at::Device& device);

// Collective: times exchanges among the ranks of a group. `bytes`: bytes of the tensor that a rank sends in one.
// Repeats for about `limit` seconds, equally often on every rank, at least three times.
ExchangeTimes time_exchange(Communicator& group, Exchange kind, int64_t bytes, double limit, at::Device device);

// Answers `convoy-rank --describe metrics`: evaluates a new model on a few rows of each kind. Returns nothing if the
// model does not accept so few rows. Throws if the data set or the model cannot be created.
std::optional<EvaluationMetrics> evaluation_metrics(const RunConfig& config, const Registry& registry);

// Seconds of a block's forwards so far.
struct BlockTime {
  std::string name;
  double seconds = 0;
};

class TimedStep {
 public:
  // `config`: of the reference strategy, with updates only on request (strategy.sync.every is unreachable).
  // `blocks`: indices of the blocks to create, in this order; empty: all.
  TimedStep(const RunConfig& config, const Registry& registry, at::Device device, int threads,
            const std::vector<int64_t>& blocks = {});

  // Selects the number of rows of later batches, at most the size of the data set, and returns it. A thread gathers the
  // batches ahead, as in training.
  int64_t batches_of(int64_t rows);
  // Returns the seconds of one step: wait for data, forward, backward, and update if `updates`.
  double step(bool updates);
  // Times of all forwards so far; empty on a GPU, where the host does not wait for the forwards.
  std::vector<BlockTime> block_times() const;

 private:
  RunConfig config_;
  at::Device device_;
  DatasetPtr data_;
  std::vector<std::shared_ptr<const Transform>> transforms_;
  std::shared_ptr<std::vector<BlockTime>> times_;
  Context context_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Loader> loader_;
  MetricAccumulator metrics_;
  int64_t number_ = 0;  // steps of all row counts so far; keys random draws
};

}  // namespace convoy
