// How long a step would take: from what cost() says of a plan and what a calibration has measured. Pure functions over
// plain data, so that they are tested without a machine; no strategy is known by name.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/plan.h"
#include "launch/calibration.h"

namespace convoy {

// Why there is a time, or none.
struct ExchangePart {
  std::string axis;
  Exchange kind = Exchange::all_reduce;
  double bytes = 0, messages = 0;  // a step, of the rank that sends most
  double seconds = 0;              // a step, were nothing beside it
  double shown = 0;                // of these what lengthens the step
};
struct StepPrediction {
  std::string reason;   // why none can be told; the rest is then empty
  double seconds = 0;   // a step
  double error = 0;     // of it, ±: what the calibration scattered by and what the formulas assume
  double compute = 0;   // forward and backward, of the rank that has most
  double idle = 0;      // what it waits for others in a pipeline
  double update = 0;    // of parameters
  double exchange = 0;  // what exchanges add
  std::vector<ExchangePart> exchanges;
  std::vector<std::string> notes;  // what makes it less sure
};

// `costs` by rank, as the strategy's formulas evaluate for `job` on `topology`. `link`: between its hosts.
StepPrediction predict(const Job& job, const std::vector<RankCost>& costs, const Topology& topology,
                       const Calibration& calibration, const std::optional<Link>& link = std::nullopt);

// A figure and what it may be off by, ±.
struct Estimate {
  double value = 0;
  double error = 0;
};
// Seconds of one pass without update over `rows` rows, by `ranks` at once with `threads` each. `error` is what the
// measurement scattered by, and, for row counts and threads that were not measured, by how much their ways of being found
// disagree.
Estimate pass_seconds(const Calibration& calibration, int ranks, int threads, double rows);
// What a pass costs that has no rows.
Estimate pass_overhead(const Calibration& calibration, int ranks, int threads);
// Of all parameters.
Estimate update_seconds(const Calibration& calibration, int ranks, int threads);
// Of one message of which a rank sends `bytes`, among `ranks` of one host; empty where its backend was not measured.
std::optional<Estimate> exchange_seconds(const Calibration& calibration, const std::string& backend, Exchange kind,
                                         double bytes, int ranks);
// The same by ring algorithms over links.
double link_seconds(const Link& link, Exchange kind, double bytes, int ranks);

}  // namespace convoy
