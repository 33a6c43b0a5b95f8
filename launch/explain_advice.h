// Would more devices pay? In a sentence, from predictions.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/prediction.h"

namespace convoy {

// A way to train the same model, with its prediction.
struct Contender {
  std::string name;  // of its strategy
  int ranks = 1;
  double rows = 0;  // of a step, all ranks together
  StepPrediction step;
  // The same with an update every so many steps; nothing where that is no option or would not help.
  struct Rarely {
    int every = 0;
    double rows = 0;
    StepPrediction step;
  };
  std::optional<Rarely> rarely = std::nullopt;
};

// Rows a second ÷ those of `reference`, ±.
Estimate speed_over(const Contender& contender, const Contender& reference);
// "0.4×", "12×".
std::string speed_text(double speed);

// The prediction with what other work on the measured cores adds to its error. `load`: others' share of the cores.
StepPrediction widened(StepPrediction step, double load);

// What to do, and why the others are no better. `reference` is the one rank that all are held against; `others` may
// contain it again, and those that have no prediction. On a busy machine (`load`, as above) nothing is recommended.
std::string advice_text(const Contender& reference, const std::vector<Contender>& others, double load = 0);

}  // namespace convoy
