// What `convoy-rank --describe figures` tells: which figures an evaluation of the configured model gives.
#pragma once
#include <optional>

#include "core/registry.h"
#include "strategies/parts/members/catalogue.h"

namespace convoy {

// By evaluating a fresh model on a few rows of each kind. Nothing where the model does not take so few: an evaluation will tell.
// Throws what data set and model cannot be made for.
std::optional<EvaluationFigures> evaluation_figures(const RunConfig& config, const Registry& registry);

}  // namespace convoy
