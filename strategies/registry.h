// Fills the registry with what this folder has; the only place that names its classes.
#pragma once
#include <string>

#include "core/registry.h"
#include "strategies/catalogue.h"
#include "strategies/parts/additive_loss.h"
#include "strategies/parts/block_activations.h"  // measure_activations: the rest, by running them

namespace convoy {

void register_strategies(Registry& registry);

// Of a model's blocks, as far as they can be described without running them.
Description describe_model(const Model& model, const std::string& precision);

}  // namespace convoy
