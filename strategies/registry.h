// Fills the registry with the strategies. Files outside this folder do not name their factories.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/batch.h"
#include "core/registry.h"
#include "core/strategy.h"
#include "strategies/common/memory/block_activations.h"
#include "strategies/common/model/model_probes.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

void register_strategies(Registry& registry);

// Describes the model's blocks as far as possible without running them.
ModelDescription describe_model(const Model& model, const std::string& precision);

}  // namespace convoy
