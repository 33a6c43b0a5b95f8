// Differentiable collectives of the tensor group, in the pairs of Megatron-LM (Shoeybi et al., 2019; Korthikanti et
// al., "Reducing activation recomputation in large transformer models", 2022).
//
// A "whole" tensor is equal on all ranks of the group, and so is its gradient. "Parts" differ by rank: terms of a sum,
// shards of the last dimension, or equal shards of a sequence (dimension −2). The gradient of each function is another
// function of this file, so second derivatives are right too.
// All ranks call the same functions in the same order, in forward and in backward. `name` identifies the call in stall
// reports.
// Failure: CommError.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "core/communicator.h"
#include "strategies/tensor/sharded_parameter.h"

namespace convoy {

// whole → parts: the value unchanged, for consumers that differ by rank. Gradient: summed.
at::Tensor to_parts(const at::Tensor& whole, const CommunicatorPtr& group, const std::string& name);
// Terms of a sum → the sum. Gradient: unchanged.
at::Tensor sum_of_parts(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);

// [.., length of the shard] → [.., whole], for consumers that are equal on all ranks. Gradient: this rank's shard.
at::Tensor gathered_last(const at::Tensor& part, const DimensionShard& shard, const CommunicatorPtr& group,
                         const std::string& name);
// [.., whole] → this rank's shard of the last dimension. Gradient: gathered.
at::Tensor last_dimension_shard(const at::Tensor& whole, const DimensionShard& shard, const CommunicatorPtr& group,
                                const std::string& name);

// [.., T, features] → [.., T ÷ ranks, features]. Gradient: gathered.
at::Tensor sequence_shard(const at::Tensor& whole, const CommunicatorPtr& group, const std::string& name);
// [.., T ÷ ranks, features] → [.., T, features], for consumers that are equal on all ranks. Gradient: this rank's
// shard.
at::Tensor gathered_sequence(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);
// The same for consumers that differ by rank. Gradient: this rank's shard of the sum.
at::Tensor sequence_to_parts(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);
// Terms [.., T, features] of a sum → this rank's shard [.., T ÷ ranks, features] of the sum. Gradient: gathered.
at::Tensor sequence_of_sum(const at::Tensor& part, const CommunicatorPtr& group, const std::string& name);

// GroupExchange: a collective in progress, without a graph.
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
