// Synchronised batch norm: mean and variance of the rows of all ranks of a group.
//
// Forward sends one all-gather of 2·C + 1 numbers (count, means, sums of squared deviations, combined as in Chan, Golub
// and LeVeque, 1979). Backward sends one all-reduce of 2·C. Both are collective, also for ranks without rows.
#pragma once
#include <functional>
#include <string>

#include "core/communicator.h"
#include "core/model_interface.h"
#include "strategies/common/layers/default_layers.h"

namespace convoy {

// The running buffers get the same values on all ranks. If all ranks together have at most one value per channel, the
// running buffers are used instead.
BatchNormFunction synchronised_batch_norm(const CommunicatorPtr& group);

// Finds calls of LibTorch's batch norm, such as torch::batch_norm in a block, with statistics of this rank's own rows.
// The planner finds modules; functions show only when they run.
//
// Layers::batch_norm of synchronised ranks does not call LibTorch's. Instance norm does, with statistics of each row:
// such a call counts only if it updates running statistics, by which evaluation normalises.
// Returns the result of `forward` of a block under batch_norm: sync. Throws Error(config) if it makes such a call.
TensorList refuse_own_batch_norm(const std::string& block, const std::function<TensorList()>& forward);

}  // namespace convoy
