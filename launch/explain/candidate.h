// A configuration planned and placed under one strategy on given hosts, with its costs. Starts no rank.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/explain/prediction.h"
#include "launch/prepare/prepare.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

struct CostValue {
  enum class Known { exactly, at_most, not_measured } known = Known::exactly;
  double value = 0;
  bool exact() const { return known == Known::exactly; }
};
// Costs of one rank.
struct RankCosts {
  CostValue sent, messages;                  // a step
  std::map<std::string, CostValue> sent_on;  // by axis of the mesh with several ranks
  std::map<std::string, CostValue> messages_on;
  CostValue parameters, gradients, moments, activations, buffers;  // bytes
  double owned = 0;                                                // RankCost::owned_bytes
};

struct Candidate {
  std::string strategy;
  std::string title;    // heading of its column
  std::string refused;  // why it cannot run; the fields below are then empty
  std::string note;     // differences from the configuration
  // Storage of its sparse embeddings, if it differs from the configuration.
  enum class Embeddings { as_configured, whole, sharded, dense } embeddings = Embeddings::as_configured;
  PreparedRun run;
  PlacedJob placed;
  std::vector<RankCosts> costs;  // by rank
  std::optional<StepPrediction> prediction;
  std::string schedule;  // lines for people

  double update_rows() const;  // rows of the global batch
};

// Reads and checks the configuration and measures the sizes of its model's blocks, which all candidates share.
PreparedRun described_run(const RunArguments& arguments);

// The candidate with the configured strategy. Throws the errors with which `convoy run` refuses it.
Candidate configured_candidate(const PreparedRun& run, const Topology& topology);

// The configuration under another strategy. Its section gets the user's keys that both strategies have, then
// `overrides` (as --set). A strategy with a fixed number of ranks keeps it, and `note` reports it; a refusal is in
// `refused`.
Candidate candidate_under(const PreparedRun& run, const std::string& strategy, const Topology& topology,
                          const std::vector<std::string>& overrides = {});

// Returns variants of the candidate: with sharded sparse embeddings (or whole ones, if the candidate shards them), and
// with dense embeddings. Leaves out variants that its strategy refuses; empty without sparse embeddings.
std::vector<Candidate> embedding_variants(const Candidate& candidate, const Topology& topology);

// Costs of its ranks by the strategy's formulas, with the block times of the calibration unless it is null.
std::vector<RankCost> costs_of(const Candidate& candidate, const Calibration* calibration = nullptr);

// Keys of `values` that `options` have too, without the defaults of `options`. `written_only`: without keys that the
// user did not write, which have the defaults of the other strategy.
Json shared_keys(const Options& values, const std::vector<Option>& options, bool written_only);

// Memory of a rank, or of the rank that needs most: the sum of the exact values; `complete`: all values are exact.
struct Memory {
  double bytes = 0;
  bool complete = true;
};
Memory memory_of(const RankCosts& rank);
Memory largest_memory(const std::vector<RankCosts>& ranks);

// Lines "does not fit: …" for a GPU with less memory than its rank needs, or a host with less than its ranks on cores
// need; "" if all fit.
std::string misfit_text(const Candidate& candidate, const Topology& topology);

// Costs by rank of `job`. A value is exact if the fields that `description` leaves at 0 do not affect it. It is
// at_most if those fields would make it smaller, and otherwise not_measured.
std::vector<RankCosts> rank_costs_of(const StrategyEntry& strategy, const JobPlan& job,
                                     const ModelDescription& description);

// The largest value of any rank, with the least certain `known` of them.
CostValue largest(const std::vector<RankCosts>& ranks, CostValue RankCosts::*cost);

// Cells of tables: "12 MiB", "≤ 12 MiB", "not measured", "0"; "3.5"; "≥ 12 MiB" for an incomplete sum.
std::string bytes_text(const CostValue& cost);
std::string count_text(const CostValue& cost);
std::string memory_text(const Memory& memory);

}  // namespace convoy
