// Parameters that one fused optimizer loop may sweep together.
#pragma once
#include <vector>

#include "core/optim/optimizer.h"
#include "strategies/parts/parameter.h"

namespace convoy {

struct SlotGroup {
  GroupSettings group;
  bool counted = true;
  std::vector<int> members;  // indices into the parameters
};

// Those of `listed` by learning-rate factor, weight decay and being counted; groups and members in the order of `listed`.
std::vector<SlotGroup> slot_groups(const std::vector<ParameterPtr>& parameters, const std::vector<int>& listed,
                                   const Component& optimizer);

}  // namespace convoy
