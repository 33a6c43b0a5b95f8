// Checks of ranks with the same parameters: they compare them before step 0, and their values before a checkpoint of a
// program.
#pragma once
#include <vector>

#include "core/context.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

// Compares names, shapes and dtypes along the axis `data` over the control channel. Throws Error(disagreement) with the
// first parameter that differs and both ranks' versions of it. `number`: number of earlier calls in this job.
void check_equal_parameters(const Context& context, const std::vector<ModelPart*>& parts, int number = 0);

// Does the same for the values of replicated parameters. `number`: number of earlier calls in this job.
void check_equal_values(const Context& context, const std::vector<ParameterPtr>& parameters, int number);

// Copies values of foreign modules' parameters, and all buffers, from the group's rank 0 to all. Otherwise they would
// differ.
void share_foreign_values(const std::vector<ModelPart*>& parts, Communicator& group);

}  // namespace convoy
