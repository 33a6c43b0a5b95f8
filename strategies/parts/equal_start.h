// Ranks that hold the same parameters make sure of it before step 0.
#pragma once
#include "core/context.h"
#include "strategies/parts/model_part.h"

namespace convoy {

// Compares names, shapes and dtypes of the ranks along the axis `data` over the control channel. Throws
// Error(disagreement) naming the first parameter that differs and what each side has.
void check_equal_start(const Context& context, const std::vector<ModelPart*>& parts);

// Values of parameters that blocks made without Layers come from the group's rank 0: nothing else promises that they are
// equal.
void share_foreign_values(const std::vector<ModelPart*>& parts, Communicator& group);

}  // namespace convoy
