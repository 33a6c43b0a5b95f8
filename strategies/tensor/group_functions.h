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
#include <memory>
#include <string>
#include <utility>

#include "core/communicator.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

// --- Parameters that are sharded over the ranks of a tensor group ---
//
// Their initial values equal those of the whole tensor bit for bit.

// DimensionShard: sharding of one dimension of a tensor over the ranks of a tensor group. Plain data.
struct DimensionShard {
  int64_t whole = 0;  // elements
  int64_t parts = 1;  // equal ranges that are sharded separately: 3 for fused queries, keys and values
  int rank = 0;       // this rank
  int size = 1;       // size of the group

  int64_t part() const { return whole / parts; }
  bool even() const { return part() % size == 0; }
  // Returns [begin, end) of each part on rank `of`. Shards differ by at most one; the first ones are larger.
  std::pair<int64_t, int64_t> share(int of) const { return share_of(part(), of, size); }
  std::pair<int64_t, int64_t> share() const { return share(rank); }
  // Returns the elements of all parts on this rank.
  int64_t length() const {
    const auto [begin, end] = share();
    return parts * (end - begin);
  }
};

// TensorShard: sharded dimension of a tensor, 0 or 1, and its sharding.
struct TensorShard {
  int64_t dimension = 0;
  DimensionShard shard;
};

// Returns the boxes of the whole tensor that are local to this rank: one per part.
std::vector<LocalPiece> local_pieces(at::IntArrayRef shape, const TensorShard& shard);

// `shape`: shape of the whole tensor, with one or two dimensions. Its sharded dimension must have length
// `shard.shard.whole`. Every rank counts it.
ParameterPtr make_sharded_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape,
                                    const TensorShard& shard, const Init& init);

// --- Differentiable collectives ---

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

// --- Products with a sharded weight ---
//
// Product of a linear layer with a sharded weight, with its collectives. Gradients are written as in
// strategies/common/layers/linear_function.h; the input's gradient is summed while the weight's is computed.
//
// Column: the weight has this rank's outputs. The input is whole, and its gradient is summed. With `shares` the input
// is this rank's shard of sequences. It is gathered without being kept, and backward gathers it again.
// Row: the weight has this rank's inputs, and the input is sharded too. The output is the sum over ranks plus bias, or
// with `shares` this rank's shard of sequences of that sum.

struct ProductGroup {
  CommunicatorPtr group;
  std::string name;     // name of the layer, for stall reports
  bool shares = false;  // the input (column) or output (row) is sharded along the sequence: dimension −2
};

// input [.., in], weight [out of this rank, in], bias [out of this rank] or null → [.., out of this rank].
at::Tensor column_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const StatePtr& state, const ProductGroup& group);
// input [.., in of this rank], weight [out, in of this rank], bias [out] or null → [.., out].
at::Tensor row_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                       const StatePtr& state, const ProductGroup& group);

}  // namespace convoy
