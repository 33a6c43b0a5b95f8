// Options of the strategy `ensemble` that the launcher needs before ranks start. Without LibTorch.
//
// Execution modes divide one training differently, with the same results up to rounding. If the configuration leaves
// the mode open, `plan` chooses it.
// `early_stop.metric` names a metric of evaluations. Only the model and the data determine the metrics. So `convoy-rank
// --describe figures` lists them, and convoy refuses an unknown one before training.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ensemble_members.h"
#include "core/config/job_plan.h"
#include "core/config/node.h"
#include "core/config/run_config.h"

namespace convoy {

inline constexpr char execution_mode_key[] = "strategy.how";

// Returns the values of `strategy.how` to choose from; empty: the configuration fixes the mode. `plan` decides if a
// mode is possible.
std::vector<std::string> execution_modes_of(const RunConfig& config);

// Returns the execution mode of a planned job.
std::string mode_of(const JobPlan& job);

struct EvaluationMetrics {
  std::vector<std::string> evaluated;  // metrics of the evaluation split; empty: it has no rows
  std::vector<std::string> held_out;   // metrics of training rows; empty: they cannot be evaluated
};
CONVOY_JSON(EvaluationMetrics, evaluated, held_out)

// True if the configuration monitors a metric. Throws ConfigError if its section contradicts itself.
bool monitors_metric(const RunConfig& config);
// Throws ConfigError at the key for an unknown metric; the message lists the known ones.
void check_monitored_metric(const RunConfig& config, const EvaluationMetrics& metrics);

// --- Members of an ensemble: seed, learning rate, weight decay, patience, samples, and the rank of each ---

struct MemberSettings {
  int64_t number = 0;
  uint64_t seed = 1;
  double learning_rate = 0;
  double weight_decay = 0;
  int64_t patience = 0;  // evaluations without improvement before the member ends; 0: no early stopping
  MemberSample sample = {};
};

// Returns the options members, seed, lr, weight_decay, samples, early_stop.
std::vector<Option> member_options();

// Checks the section alone. Throws ConfigError at a key that is malformed, too short, or contradicts another one.
void check_members(const Options& strategy);

// Returns all members. Throws ConfigError at a key that is malformed, too short, or contradicts another one.
std::vector<MemberSettings> members_of(const RunConfig& config);
// Returns the row samples of the members, without seeds: all values that follow from the section alone.
std::vector<MemberSample> samples_of(const Options& strategy);

// Returns overrides in the form of --set with which `config` trains only this member, with a strategy for one model.
std::vector<std::string> overrides_of(const RunConfig& config, const MemberSettings& member);

// Returns members [first, last) of rank `rank` of `ranks`: contiguous; counts differ by at most one.
std::pair<int64_t, int64_t> members_of_rank(int64_t members, int rank, int ranks);

// Returns the optimizer options of a separate training of this member.
Component optimizer_of(const Component& optimizer, const MemberSettings& member);

}  // namespace convoy
