// Finds calls of LibTorch's batch norm, such as torch::batch_norm in a block, with statistics of this rank's own rows.
// The planner finds modules; functions show only when they run.
//
// Layers::batch_norm of synchronised ranks does not call LibTorch's. Instance norm does, with statistics of each row:
// such a call counts only if it updates running statistics, by which evaluation normalises.
#pragma once
#include <functional>
#include <string>

#include "core/model_interface.h"

namespace convoy {

// Returns the result of `forward` of a block under batch_norm: sync. Throws Error(config) if it makes such a call.
TensorList refuse_own_batch_norm(const std::string& block, const std::function<TensorList()>& forward);

}  // namespace convoy
