// Ranks that hold the same parameters make sure of it before step 0.
#pragma once
#include "core/context.h"
#include "strategies/parts/replica.h"

namespace convoy {

// Compares names, shapes and dtypes of all ranks of the job over the control channel. Throws Error(disagreement) naming
// the first parameter that differs and what each side has.
void check_equal_start(const Context& context, const Replica& replica);

// Values of parameters that blocks made without Layers come from rank 0: nothing else promises that they are equal.
void share_foreign_values(const Replica& replica, Communicator& group);

}  // namespace convoy
