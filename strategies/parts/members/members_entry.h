// The members of an ensemble as a configuration describes them: each one's seed, learning rate, weight decay, patience and
// samples, and which rank has it. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/config/run_config.h"
#include "core/member_draw.h"

namespace convoy {

struct MemberSettings {
  int64_t number = 0;
  uint64_t seed = 1;
  double learning_rate = 0;
  double weight_decay = 0;
  int64_t patience = 0;  // evaluations without a better figure before it ends; 0: it trains to the end
  MemberDraw draw = {};
};

// members, seed, lr, weight_decay, samples, early_stop.
std::vector<Option> member_options();

// What the section tells alone: throws ConfigError at the key that is malformed, too short, or contradicts another.
void check_members(const Options& strategy);

// All of them. Throws ConfigError at the key that is malformed, too short, or contradicts another.
std::vector<MemberSettings> members_of(const RunConfig& config);
// How the rows are drawn, without seeds: what can be told from the section alone.
std::vector<MemberDraw> draws_of(const Options& strategy);

// What makes a run of `config` by a strategy for one model that member by itself: overrides, as of --set.
std::vector<std::string> overrides_of(const RunConfig& config, const MemberSettings& member);

// Members [first, last) of rank `rank` of `ranks`: contiguous, numbers that differ by one at most.
std::pair<int64_t, int64_t> members_of_rank(int64_t members, int rank, int ranks);

// The optimizer that a training of this member by itself would have.
Component optimizer_of(const Component& optimizer, const MemberSettings& member);

}  // namespace convoy
