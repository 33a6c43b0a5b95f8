// A configuration as one strategy would run it on given hosts: planned, placed and counted, nothing started.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/cost_figures.h"
#include "launch/prediction.h"
#include "launch/prepare.h"

namespace convoy {

struct Candidate {
  std::string strategy;
  std::string title;    // what it is called beside others
  std::string refused;  // why it cannot be run so; the rest is then empty
  std::string note;     // what was done differently from what was asked
  // How its row tables are kept, where that is not as it was configured.
  enum class Tables { as_configured, whole, sharded, dense } tables = Tables::as_configured;
  PreparedRun run;
  Placed placed;
  std::vector<RankFigures> figures;  // by rank
  std::optional<StepPrediction> prediction;
  std::string schedule;  // lines for people

  double update_rows() const;  // rows of the global batch
};

// Reads and checks the configuration and asks for the sizes of its model's blocks: what all candidates share.
PreparedRun described_run(const RunArguments& arguments);

// As it is configured. Throws what `convoy run` would refuse it with.
Candidate configured_candidate(const PreparedRun& run, const Topology& topology);

// The same configuration under a strategy, whose section, where it is another, is that of the configuration as far as it
// knows the keys, and `overrides`, as of --set. One that has its own number of ranks keeps it, which the note tells; what it
// refuses is in `refused`.
Candidate candidate_under(const PreparedRun& run, const std::string& strategy, const Topology& topology,
                          const std::vector<std::string>& overrides = {});

// The same with its row tables kept in other ways: dealt out to ranks, or whole on each; and dense. Without what its strategy
// refuses; empty where it has no row tables.
std::vector<Candidate> table_variants(const Candidate& candidate, const Topology& topology);

// What its ranks cost by the formulas, with what a calibration has measured of the model's blocks; null: without.
std::vector<RankCost> costs_of(const Candidate& candidate, const Calibration* calibration = nullptr);

// Of `values`, what `options` describe too and have no such default of.
Json shared_keys(const Json& values, const std::vector<Option>& options);

}  // namespace convoy
