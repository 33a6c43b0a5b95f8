// Whether any pipeline of a farm tells the metric that its leaderboard is to be sorted by, found out before anything starts.
#pragma once
#include <optional>
#include <string>

#include "core/farm.h"

namespace convoy {

// The mistake at strategy.metric, written at `mark`, listing what there is. Nothing where one of the first unlike pipelines tells
// it, or where that cannot be known; each look is a start of `rank_program`. Configurations have no mistakes.
std::optional<ConfigError> metric_mistake(const Farm& farm, const Mark& mark, const std::string& rank_program);

}  // namespace convoy
