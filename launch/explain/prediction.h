// Predicted step time of a plan, from the strategy's cost and a calibration. Pure functions; they do not depend on this
// machine or on a particular strategy.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "launch/explain/calibration.h"

namespace convoy {

struct ExchangeTime {
  std::string axis;
  Exchange kind = Exchange::all_reduce;
  double bytes = 0, messages = 0;    // a step, of the rank that sends most
  double seconds = 0;                // a step, without overlap
  double exposed = 0;                // seconds that do not overlap with computation
  bool run_chooses_overlap = false;  // by measuring whether overlap is faster
};
struct StepPrediction {
  std::string reason;   // why there is no prediction; the other fields are then empty
  double seconds = 0;   // a step
  double error = 0;     // ± seconds: scatter of the calibration and assumptions of the formulas
  double compute = 0;   // forward and backward, of the slowest rank
  double idle = 0;      // pipeline bubble
  double update = 0;    // optimizer update
  double exchange = 0;  // exposed communication
  std::vector<ExchangeTime> exchanges;
  std::vector<std::string> notes;  // reasons for a larger error
};

// True if the error is above 100 %: the prediction is no ground for a decision.
bool too_rough(const StepPrediction& step);

// `costs`: by rank, from the strategy's formulas for `job` on `topology`. `link`: between its hosts.
StepPrediction predict(const JobPlan& job, const std::vector<RankCost>& costs, const Topology& topology,
                       const Calibration& calibration, const std::optional<HostLink>& link = std::nullopt);

struct Estimate {
  double value = 0;
  double error = 0;  // ±
};
// Seconds of one pass without update over `rows` rows, by `ranks` at once with `threads` each. The error has the
// measurement's scatter. Row counts and threads that were not measured add half of the difference of two
// extrapolations.
Estimate pass_seconds(const Calibration& calibration, int ranks, int threads, double rows);
// Seconds of a pass over 0 rows, extrapolated.
Estimate pass_overhead(const Calibration& calibration, int ranks, int threads);
// Seconds of an update of all parameters.
Estimate update_seconds(const Calibration& calibration, int ranks, int threads);
// Seconds of one exchange in which each of `ranks` ranks of one host sends `bytes`; empty if the backend was not
// measured.
std::optional<Estimate> exchange_seconds(const Calibration& calibration, const std::string& backend, Exchange kind,
                                         double bytes, int ranks);
// Seconds of one exchange by a ring over links between hosts.
double link_seconds(const HostLink& link, Exchange kind, double bytes, int ranks);

}  // namespace convoy
