// What pipelines want of the machines that are there: slots, claims on them, and what cannot be. Pure but for plugins, data
// files and checkpoints, which are looked for.
#pragma once
#include <string>
#include <vector>

#include "core/farm.h"
#include "core/topology.h"
#include "launch/farm/queue.h"

namespace convoy {

// The hosts of a farm with what it may use of each, and the slots that these make.
struct Yard {
  std::vector<Host> hosts;
  Machines machines;
};
// Alone: each physical core is a slot.
Yard yard_of(const Host& host);
// Under a launcher: slot i is the i-th agent's. `agents` are their hosts, with what the launcher bound each to (Host::bound);
// agents that may all use the same cores of a host divide them.
Yard yard_of(const std::vector<Host>& agents);

// Of a pipeline whose configuration is null as far as its terms tell.
Claim claim_of(const Pipeline& pipeline, const Yard& yard, int max_parallel);
// Processing units of a grant: those that the claim names, else all of its slots'.
std::vector<int> units_of(const Grant& grant, const Claim& claim, const Machines& machines);

// Everything that is wrong with the pipelines on these machines: what each of them wants and is not there, what its own
// strategy refuses, cores and GPUs that two name without `share`, shares and memory limits that together are more than a
// device has. Completes the configurations of those that bring plugins. `rank_program`: of convoy-rank.
// Of a pipeline without a configuration (null), since that has mistakes, only its terms are looked at.
// The first `known` were checked before, and only take their part of cores, GPUs and memory.
std::vector<ConfigError> check_claims(Farm& farm, const Yard& yard, const std::string& rank_program, size_t known = 0);
// Of these, what no machine has to be known for: plugins, data files, and what two name without `share`.
std::vector<ConfigError> check_anywhere(Farm& farm, const std::string& rank_program);

}  // namespace convoy
