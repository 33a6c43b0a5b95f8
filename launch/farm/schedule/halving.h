// Successive halving (Jamieson and Talwalkar, AISTATS 2016): all trials train up to a first point; the best 1/eta
// continue to eta times that, and so on, until one is left. It trains to its end.
//
// A rung is decided when every trial has reached it. So the outcome does not depend on the number of slots, nor on the
// order in which trials end. Pure functions.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

struct HalvingOptions {
  int64_t eta = 0;  // 0: no halving
  Interval first;   // point of the first rung
};

// A trial, as its journal and summary describe it.
struct Trial {
  // Metric at each rung that it has reached; nothing if it had none there.
  std::vector<std::optional<double>> values;
  bool ended = false;          // it trains no further: done, failed or cancelled
  std::optional<double> last;  // then: its metric at the end; nothing if it failed
  int lost = -1;               // rung at which it ended as one of the worse; -1: none
};

struct HalvingPlan {
  int rung = 0;                                // next rung
  std::vector<size_t> running;                 // trials that must still reach it, in their order
  bool to_end = false;                         // these trials train to their end, not to a rung
  std::vector<std::pair<size_t, int>> losers;  // trials that end now, and their rung
};

// Returns what happens next. `running` is empty if no trial is left to train. Ties keep the earlier trial.
HalvingPlan halving_plan(const std::vector<Trial>& trials, int64_t eta, bool lower_is_better);

// Point of a rung, for train.pause_after; never if no training is that long.
Interval rung_point(const HalvingOptions& options, int rung);
// Number of rungs after which one of `trials` is left.
int rungs_of(size_t trials, int64_t eta);

}  // namespace convoy
