// Differentiable exchanges within the tensor group, the pairs of Megatron-LM (Shoeybi et al., 2019; Korthikanti et al.,
// "Reducing activation recomputation in large transformer models", 2022).
//
// "Whole" is a tensor that all ranks of the group have alike, and whose gradient they get alike. "Parts" differ by
// rank: those of a sum, shares of the last dimension, or shares of a sequence (dimension −2, equal ones). Each
// function's gradient is another one of this file, so that gradients of gradients are right too.
// All ranks call the same functions in the same order, in forward and in backward. `name` is what a stall is told by.
// Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "core/communicator.h"
#include "strategies/parts/tensor/dimension_cut.h"

namespace convoy {

// A whole that each rank takes into a sum or a share of its own: the value as it is. Gradient: summed.
at::Tensor to_parts(const at::Tensor& whole, const CommunicatorPtr& group, const std::string& name);
// Parts of a sum → the sum. Gradient: as it is.
at::Tensor sum_of_parts(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);

// [.., length of the cut] → [.., whole], for consumers that all ranks have alike. Gradient: this rank's share.
at::Tensor gathered_last(const at::Tensor& part, const DimensionCut& cut, const CommunicatorPtr& group,
                         const std::string& name);
// [.., whole] → this rank's share of the last dimension. Gradient: gathered.
at::Tensor own_last(const at::Tensor& whole, const DimensionCut& cut, const CommunicatorPtr& group,
                    const std::string& name);

// [.., T, features] → [.., T ÷ ranks, features]. Gradient: gathered.
at::Tensor own_sequence(const at::Tensor& whole, const CommunicatorPtr& group, const std::string& name);
// [.., T ÷ ranks, features] → [.., T, features], for consumers that all ranks have alike. Gradient: this rank's share.
at::Tensor gathered_sequence(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);
// The same for consumers that differ by rank. Gradient: summed, and this rank's share of that.
at::Tensor sequence_to_parts(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);
// Parts [.., T, features] of a sum → this rank's share [.., T ÷ ranks, features] of the sum. Gradient: gathered.
at::Tensor sequence_of_sum(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);

// An exchange under way, without a graph.
class GroupExchange {
 public:
  using Finish = std::function<at::Tensor(const at::Tensor&)>;
  GroupExchange(WorkPtr work, at::Tensor result, Finish finish = nullptr)
      : work_(std::move(work)), result_(std::move(result)), finish_(std::move(finish)) {}
  at::Tensor wait() const {
    work_->wait();
    return finish_ ? finish_(result_) : result_;
  }

 private:
  WorkPtr work_;
  at::Tensor result_;
  Finish finish_;
};

GroupExchange start_sum(const at::Tensor& contiguous, Communicator& group, const std::string& name);  // in place
GroupExchange start_gathering_sequence(const at::Tensor& part, Communicator& group, const std::string& name);
GroupExchange start_sequence_of_sum(const at::Tensor& part, Communicator& group, const std::string& name);

}  // namespace convoy
