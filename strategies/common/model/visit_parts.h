// State of strategies with a data axis that replicates parameters.
#pragma once
#include <vector>

#include "core/state.h"
#include "strategies/common/memory/flat_parameters.h"
#include "strategies/common/model/model_part.h"
#include "strategies/common/step/update.h"

namespace convoy {

// This rank's index among the ranks with the same state (along the data axis).
struct StateOwner {
  int index = 0;
  int count = 1;
  bool first_of_job = true;
};

// Visits parameters, buffers, moments and counters, in this order. Each entry has one owner; owners are distributed
// evenly over the data axis.
void visit_parts(const std::vector<ModelPart*>& parts, const FlatParameters& flat, Update& update,
                 const StateOwner& owner, const StateVisitor& visit);
// Visits copies of the gradients of the last update; before the first one there are none. They are those of the mean
// loss over the update's rows, before clipping.
void visit_gradients(const FlatParameters& flat, const Update& update, const StateOwner& owner,
                     const StateVisitor& visit);

// Returns the entry of a whole tensor.
StateEntry state_entry(const std::string& name, StateKind kind, const at::Tensor& tensor, bool owner = true);

// Visits frozen parameters and buffers, which every rank of the data axis has. `owner`: this rank writes them.
void visit_untrained(const std::vector<ModelPart*>& parts, bool owner, const StateVisitor& visit);
// Visits elements [begin, end), row-major, of a parameter or of a tensor of its shape. `tensor` [end − begin] contains
// them. Each piece of the whole tensor is a separate entry.
void visit_range(const Parameter& parameter, StateKind kind, const std::string& moment, const at::Tensor& tensor,
                 int64_t begin, int64_t end, const StateVisitor& visit);
// Visits Update::counters().
void visit_counters(const Update& update, bool owner, const StateVisitor& visit);

// Returns the buffers of all parts, in their order.
std::vector<NamedBuffer> buffers_of(const std::vector<ModelPart*>& parts);

}  // namespace convoy
