// Which parameters are stored, gathered and reduced together where a data axis shards them.
#pragma once
#include <optional>
#include <vector>

#include "strategies/parts/model_part.h"
#include "strategies/parts/shards/sharded_unit.h"

namespace convoy {

struct PlannedUnit {
  UnitRequest request;
  CommunicatorPtr partial;  // gradients are parts of a sum over this group (Parameter::partial); null: whole
  size_t part = 0;
  std::vector<size_t> blocks;  // of the part, that use it, ascending
};

struct UnitOptions {
  Shard shard = Shard::parameters;
  bool by_tensor = false;                // one unit a parameter
  std::optional<at::ScalarType> narrow;  // what autocast computes products in
  CommunicatorPtr tensor;                // the axis `tensor`, whose ranks have the same units
};

// Units are blocks: the parameters that a block made and uses alone, those that serve in the narrow dtype by themselves. A
// tensor that several blocks use is a unit of its own, and so is one that ranks with other blocks share. In the order of
// parts and blocks; every trained parameter is in one.
std::vector<PlannedUnit> plan_units(const std::vector<ModelPart*>& parts, const UnitOptions& options);

}  // namespace convoy
