// Synchronised batch norm: mean and variance of the rows of all ranks of a group.
//
// Forward sends one all-gather of 2·C + 1 numbers (count, means, sums of squared deviations, combined as in Chan, Golub
// and LeVeque, 1979). Backward sends one all-reduce of 2·C. Both are collective, also for ranks without rows.
#pragma once
#include "core/communicator.h"
#include "strategies/common/layers/default_layers.h"

namespace convoy {

// The running buffers get the same values on all ranks. If all ranks together have at most one value per channel, the
// running buffers are used instead.
BatchNormFunction synchronised_batch_norm(const CommunicatorPtr& group);

}  // namespace convoy
