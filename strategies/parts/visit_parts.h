// What strategies whose ranks hold their parameters whole along the data axis show of their state.
#pragma once
#include <vector>

#include "core/state.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/model_part.h"
#include "strategies/parts/update.h"

namespace convoy {

// This rank among those that hold the same: its place along the data axis, and whether it is rank 0 of the job.
struct Holder {
  int index = 0;
  int count = 1;
  bool first_of_job = true;
};

// Parameters, buffers, moments, the gradients of the update before (once there was one) and the count of updates, in this
// order. Each entry has one owner, chosen so that large models are spread evenly over the data axis. Gradients are those of
// the mean loss over the update's rows, before clipping, and not restored.
void visit_parts(const std::vector<ModelPart*>& parts, const FlatParameters& flat, Update& update, const Holder& holder,
                 const StateVisitor& visit);

}  // namespace convoy
