#include "strategies/parts/tensor/sharded_loss.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include "strategies/parts/tensor/sharded_embedding.h"

namespace convoy {
namespace {

// The target's logit where this rank has it, else 0: [.., B, …].
at::Tensor own_target(const at::Tensor& logits, const at::Tensor& target, const DimensionCut& cut) {
  const OwnPositions own = own_positions(target, cut, "the target");
  return logits.gather(-1, own.index.unsqueeze(-1)).squeeze(-1).masked_fill(own.foreign, 0);
}

}  // namespace

// log Σ exp(x − m) − (x_target − m) with m the largest of all; the sum and the target's come by one exchange.
at::Tensor cut_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const DimensionCut& cut,
                             const CommunicatorPtr& group) {
  const auto dtype = logits.scalar_type();
  const at::Tensor exact = dtype == at::kHalf || dtype == at::kBFloat16 ? logits.to(at::kFloat) : logits;
  const at::Tensor largest = exact.detach().amax(-1).contiguous();
  group->all_reduce(largest, ReduceOp::max, {"largest logit", {}})->wait();
  const at::Tensor shifted = exact - largest.unsqueeze(-1);
  const at::Tensor own = at::stack({shifted.exp().sum(-1), own_target(shifted, target, cut)});
  const at::Tensor all = sum_of_parts(own, group, "cross-entropy");
  return all[0].log() - all[1];
}

at::Tensor cut_target_rank(const at::Tensor& logits, const at::Tensor& target, const DimensionCut& cut,
                           const CommunicatorPtr& group) {
  const at::Tensor values = logits.detach();
  const at::Tensor own = own_target(values, target, cut).contiguous();
  group->all_reduce(own, ReduceOp::sum, {"logit of the target", {}})->wait();
  const at::Tensor above = (values >= own.unsqueeze(-1)).sum(-1);
  group->all_reduce(above, ReduceOp::sum, {"rank of the target", {}})->wait();
  return above - 1;
}

}  // namespace convoy
