// Runs the ranks of one rank process as threads, from the rank assignment to the results.
#pragma once
#include <string>

#include "api/rank_process.h"
#include "core/config/run_config.h"
#include "core/registry.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// ModelDescription of the model that the configuration creates for its data set.
struct DescribedBlocks {
  ModelDescription model;
  std::string unmeasured;  // why activations were not measured although requested; "" otherwise
  std::string advice;      // about the evaluation of the data; "" if there is none
};
// With `activations`, also measures saved activations and outputs of each block, by a step with fake tensors. A model
// that does not support them runs for real if it is small.
DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations);

// Trains or runs the requested benchmark; returns the process's exit code. Failures have been reported over the
// channel.
int run_ranks(RankProcess& process, const Registry& registry);

}  // namespace convoy
