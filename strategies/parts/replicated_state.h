// What strategies that hold everything on every rank show of their state.
#pragma once
#include "core/state.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/replica.h"
#include "strategies/parts/update.h"

namespace convoy {

// Parameters, buffers, moments, the gradients of the update before (once there was one) and the count of updates, in this
// order. Every rank of `size` holds all; each entry has one owner, chosen so that large models are spread evenly over the
// ranks. Gradients are those of the mean loss over the update's rows, before clipping, and not restored.
void visit_replicated_state(const Replica& replica, const FlatParameters& flat, Update& update, int rank, int size,
                            const StateVisitor& visit);

}  // namespace convoy
