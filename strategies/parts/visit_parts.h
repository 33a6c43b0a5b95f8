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

// Parameters, buffers, moments, the gradients of the update before (once there was one) and counters, in this
// order. Each entry has one owner, chosen so that large models are spread evenly over the data axis. Gradients are those of
// the mean loss over the update's rows, before clipping, and not restored.
void visit_parts(const std::vector<ModelPart*>& parts, const FlatParameters& flat, Update& update, const Holder& holder,
                 const StateVisitor& visit);

// Parameters that are not trained, and buffers, which every rank of the data axis has; `owner`: this one is the first.
void visit_untrained(const std::vector<ModelPart*>& parts, bool owner, const StateVisitor& visit);
// A parameter or something of its shape, of which `tensor` [end − begin] holds elements [begin, end), row-major: one entry
// for each piece of the whole tensor that these are of.
void visit_range(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                 int64_t begin, int64_t end, const StateVisitor& visit);
// Update::counters().
void visit_counters(const Update& update, bool owner, const StateVisitor& visit);

// Of all parts, in their order.
std::vector<NamedBuffer> buffers_of(const std::vector<ModelPart*>& parts);

}  // namespace convoy
