// Checks at the start of a run: ranks with the same parameters compare them before step 0.
#pragma once
#include <vector>

#include "core/context.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

// Compares names, shapes and dtypes along the axis `data` over the control channel. Throws Error(disagreement) with the
// first parameter that differs and both ranks' versions of it. `number`: number of earlier calls in this job.
void check_equal_parameters(const Context& context, const std::vector<ModelPart*>& parts, int number = 0);

// Copies values of foreign modules' parameters, and all buffers, from the group's rank 0 to all. Otherwise they would
// differ.
void share_foreign_values(const std::vector<ModelPart*>& parts, Communicator& group);

}  // namespace convoy
