// Evaluator: loss and metrics of a strategy's state on evaluation rows, or on training rows. The Trainer and
// `convoy evaluate` use it.
//
// Each row counts once, whatever the number of ranks and the layout: every rank adds sums and weights of its share, and
// one all-reduce adds those of the ranks.
// Threads: the rank's thread; all ranks make the same calls. Errors: those of the data and of Strategy::evaluate;
// CommError(disagreement) if ranks evaluate different metrics.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/data/dataset.h"
#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "core/metrics/accumulator.h"
#include "core/strategy.h"

namespace convoy {

// Rows to evaluate, and the state.
struct EvaluationComponents {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  Strategy* strategy = nullptr;  // set up already
  int64_t batch_rows = 1;        // rows of a global batch: each row may have many candidates
};

class Evaluator {
 public:
  using Metrics = std::map<std::string, MetricValue>;

  // `sampler` reads the training split and may hold out a fold. It outlives this object.
  Evaluator(const Context& context, EvaluationComponents components, const Sampler& sampler);

  // True if there are rows to evaluate.
  bool possible() const { return rows() > 0 || holds_out_; }
  int64_t rows() const { return components_.data->size(Split::evaluate); }
  // The strategy, if it evaluates members on their held-out rows; else null.
  HeldOutEvaluation* held_out() const { return held_out_; }

  // Collective, after Strategy::flush_for_evaluation. `options`: this rank's share. `abandoned` is called before each
  // batch; if it returns true, on all ranks, the result is nullopt.
  std::optional<Metrics> run(const LoaderOptions& options, const std::function<bool()>& abandoned);
  // As `run`, for all rows of the training split, without the transforms of training.
  std::optional<Metrics> run_on_training_rows(const LoaderOptions& options, const std::function<bool()>& abandoned);

 private:
  using Evaluate = std::function<std::vector<Metric>(const Batch&)>;

  std::optional<Metrics> evaluated_on(Loader loader, const std::string& kind, const std::function<bool()>& abandoned,
                                      const Evaluate& evaluate);
  std::optional<Metrics> held_out_rows(LoaderOptions options, const std::function<bool()>& abandoned);

  const Context& context_;
  const EvaluationComponents components_;
  const Sampler& sampler_;
  SameMetrics same_metrics_;
  HeldOutEvaluation* held_out_;
  bool holds_out_;  // folds leave out rows that can be evaluated
};

// The share of training and evaluation batches that this rank reads.
LoaderOptions share_options(const Context& context, const Sampling& sampling);

// WatchedMetric: the best value that a metric has had in the evaluations of a run: for train.keep_best and
// train.early_stop. Equal on all ranks, because all get the same metrics. Pure data.
class WatchedMetric {
 public:
  // `key`: "train.early_stop", for messages.
  WatchedMetric(std::string key, WatchConfig config) : key_(std::move(key)), config_(std::move(config)) {}

  bool watches() const { return !config_.metric.empty(); }
  // Takes the metrics of the state after `step` steps. True if the value is finite and the best so far. Always false
  // if nothing is watched. Error(config) that lists the metrics if the watched one is missing.
  bool add(const std::map<std::string, MetricValue>& metrics, int64_t step);
  // True if the last `patience` evaluations brought no improvement.
  bool exhausted() const { return watches() && config_.patience > 0 && waited_ >= config_.patience; }

  // Best value and its step, for checkpoints and the summary; null before the first value.
  Json json() const;
  // Continues from a checkpoint; does nothing if the checkpoint has another watched metric or direction.
  void restore(const Json& json);
  std::string text() const;  // "accuracy 0.97 of step 40"

 private:
  std::string key_;
  WatchConfig config_;
  double best_ = std::numeric_limits<double>::quiet_NaN();  // NaN: none so far
  int64_t step_ = 0, waited_ = 0;
};

}  // namespace convoy
