// What strategies refuse because it could do nothing, or not what was meant: keys of a section beside which others leave
// them without effect, and ways to agree that a strategy does not have. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// Of the keys that all strategies share: `loss_scale` without fp16, a block that `recompute` names twice, and of `sync`
// (sync_entry.h) what there are no replicas for, or what means nothing. Throws ConfigError at the key; returns a line for
// each key that --set left without effect.
std::vector<std::string> check_shared_effects(const RunConfig& config);

// The same for `reshard_after_forward` where parameters are not sharded.
std::vector<std::string> check_shard_effects(const Options& section);

// Of a section that has the keys of several axes: those of an axis that is not there. `because`: where the axis would be
// given; `reason` ends the message "is for …, and …".
std::vector<std::string> refuse_keys_of(const Options& section, const std::vector<std::string>& keys,
                                        const std::string& reason, const Mark& because);

}  // namespace convoy
