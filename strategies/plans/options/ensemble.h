// Options of an ensemble and of its members: seed, learning rate, weight decay, patience, samples. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ensemble_members.h"
#include "core/config/run_config.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {

struct MemberSettings {
  int64_t number = 0;
  uint64_t seed = 1;
  double learning_rate = 0;
  double weight_decay = 0;
  int64_t patience = 0;  // evaluations without improvement before the member ends; 0: no early stopping
  MemberSample sample = {};
};

enum class EnsembleMode { stacked, threads, processes, automatic };
enum class Convolutions { automatic, grouped, each };

// Typed values of the section that are equal for all members. MemberSettings has the others.
struct EnsembleOptions : StepOptions {
  int64_t members = 10;
  EnsembleMode how = EnsembleMode::automatic;
  Convolutions convolutions = Convolutions::automatic;
  bool vote = true;              // evaluate the members' majority and mean too
  Options early_stop = {};       // for errors, and for the patience of each member
  std::string stop_metric = {};  // early_stop.metric
};
EnsembleOptions ensemble_options(const Options& strategy);
// Returns all options of the section.
std::vector<Option> ensemble_section_options();

// Checks the section alone. Throws ConfigError at a key that is malformed, too short, or contradicts another one.
void check_members(const Options& strategy);

// Returns all members. Throws ConfigError at a key that is malformed, too short, or contradicts another one.
std::vector<MemberSettings> members_of(const RunConfig& config);
// Returns the row samples of the members. Their seeds are not set: those do not follow from the section alone.
std::vector<MemberSample> samples_of(const Options& strategy);

// Returns members [first, last) of rank `rank` of `ranks`: contiguous; counts differ by at most one.
std::pair<int64_t, int64_t> members_of_rank(int64_t members, int rank, int ranks);

// Returns the optimizer options of a separate run of this member.
Component optimizer_of(const Component& optimizer, const MemberSettings& member);

// Returns StrategyEntry::members of an ensemble.
MemberFunctions ensemble_member_functions();

}  // namespace convoy
