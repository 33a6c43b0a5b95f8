// Advice from predictions: which candidate trains fastest and why the others do not. Also the execution mode of an
// ensemble with `strategy.how: auto`.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/explain/prediction.h"
#include "launch/prepare/prepare.h"

namespace convoy {

// The plan chooses the mode from the devices and never from measurements: modes round differently, and equal runs must
// give equal bits. Thread: the event loop's.

// Keeps a resumed run's execution mode and number of ranks, which determine rounding: replaces `placed` by a plan with
// the number of ranks of its checkpoint, and with the mode of ways.json, a file of earlier versions. If that cannot be
// planned on this host, it only adds a warning.
void fix_mode(const PreparedRun& run, const std::string& folder, PlacedJob& placed);

// {taken, because, tried: []} of a planned job, for summary.json; null if the configuration names the mode.
Json choice_of(const PreparedRun& run, const std::string& folder, const Job& job);

struct PredictedCandidate {
  std::string name;  // of its strategy
  int ranks = 1;
  double rows = 0;  // a step, of all ranks together
  StepPrediction step;
  // The candidate with less frequent synchronisation; empty if it has no such option or gains nothing.
  struct LowerFrequency {
    int every = 0;  // steps
    double rows = 0;
    StepPrediction step;
  };
  std::optional<LowerFrequency> lower_frequency = std::nullopt;
};

// Rows a second ÷ those of `reference`.
Estimate speed_over(const PredictedCandidate& candidate, const PredictedCandidate& reference);
// "0.4×", "12×".
std::string speed_text(double speed);

// Adds the effect of other load on the measured cores to the error. `load`: its share of the cores.
StepPrediction widened(StepPrediction step, double load);

// One sentence: the best candidate, and why the others are no better. `reference`: the single rank with which all are
// compared. `others` may contain it and candidates without prediction. Recommends nothing on a busy machine (`load`),
// and no candidate with an error above 100 %.
std::string advice_text(const PredictedCandidate& reference, const std::vector<PredictedCandidate>& others,
                        double load = 0);

}  // namespace convoy
