// Losses and ranks over logits whose classes the ranks of a tensor group share out, without gathering them: what is
// exchanged is a few numbers per position. Shapes as in core/layers.h; `cut` is that of the last dimension of `logits`.
#pragma once
#include "strategies/parts/tensor/tensor_group.h"

namespace convoy {

// logits [.., B, …, classes of this rank], target [.., B, …] → [.., B, …], in float for 16-bit logits.
at::Tensor cut_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const DimensionCut& cut,
                             const CommunicatorPtr& group);
at::Tensor cut_target_rank(const at::Tensor& logits, const at::Tensor& target, const DimensionCut& cut,
                           const CommunicatorPtr& group);

}  // namespace convoy
