// WatchedMetric: the best value that a metric has had in the evaluations of a run: for train.keep_best and
// train.early_stop. Equal on all ranks, because all get the same metrics. Pure data.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/base/json.h"
#include "core/config/run_config.h"
#include "core/metrics/accumulator.h"

namespace convoy {

class WatchedMetric {
 public:
  // `key`: "train.early_stop", for messages.
  WatchedMetric(std::string key, WatchConfig config) : key_(std::move(key)), config_(std::move(config)) {}

  bool watches() const { return !config_.metric.empty(); }
  // Takes the metrics of the state after `step` steps. True if the value is the best so far; NaN never is. Always false
  // if nothing is watched. Error(config) that lists the metrics if the watched one is missing.
  bool add(const std::map<std::string, MetricValue>& metrics, int64_t step);
  // True if the last `patience` evaluations brought no improvement.
  bool exhausted() const { return watches() && config_.patience > 0 && waited_ >= config_.patience; }

  // Best value and its step, for checkpoints and the summary; null before the first value.
  Json json() const;
  // Continues from a checkpoint; does nothing if that watched another metric.
  void restore(const Json& json);
  std::string text() const;  // "accuracy 0.97 of step 40"

 private:
  std::string key_;
  WatchConfig config_;
  bool any_ = false;
  double best_ = 0;
  int64_t step_ = 0, waited_ = 0;
};

}  // namespace convoy
