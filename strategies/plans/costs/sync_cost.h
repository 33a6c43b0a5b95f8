// What an update of strategies with replicas sends, by the section `sync` (options/sync.h). Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/sync.h"

namespace convoy {

// Throws ConfigError at the key for a pattern that matches no parameter.
void check_sync_names(const JobPlan& job, const ModelDescription& description);

// Returns the elements of each of the policy's groups, in proportion to the blocks' parameters, which a tensor group
// may shard.
std::vector<double> sync_elements(const SyncPolicy& policy, const ModelDescription& description);
// Adds the mean bytes per step that a data axis of `ranks` replicas sends after `start_after`. Also adds the memory
// that replicas need besides parameters, gradients and moments.
void add_sync_cost(const Json& config, const ModelDescription& description, int ranks, RankCost& cost);
// Returns lines for people: messages of each group and their times. "" if all gradients are summed for every update.
std::string sync_text(const Json& config, const ModelDescription& description, int ranks);

}  // namespace convoy
