// ShardingState: position of a forward between the layers of a tensor group. It provides layers without a hint
// (dropout, norms, losses) with the sharding of their input.
//
// Regions. A column-parallel layer opens a region; the row-parallel layer that takes its outputs closes it. Within the
// region an activation with the shape of the opening layer's output is sharded like that output. One with the shape of
// its input is whole. Any other is computed from sharded ones. Its last dimension is this rank's shard, in rank order
// (for example attention weights of its heads). Outside regions everything is whole. Blocks begin outside: an
// activation that is sharded across a boundary first reaches a row-parallel layer.
//
// Sequences. With `sequence_parallel`, blocks with sharded layers receive floating-point inputs [B, T, features] as
// shards of T. Their column-parallel layers gather them; their row-parallel layers return shards again. Model parts and
// blocks without sharded layers receive whole inputs. A block that returns a shard in another shape, such as [B, shard
// of T], is refused, because it looks like a whole tensor.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "strategies/common/memory/block_counts.h"
#include "strategies/tensor/group_functions.h"

namespace convoy {

class ShardingState : public BlockBoundaries {
 public:
  ShardingState(CommunicatorPtr group, bool sequence_parallel)
      : group_(std::move(group)), sequence_parallel_(sequence_parallel) {}

  // Records during construction that this block has sharded layers.
  void mark_sharded_block(const std::string& block) { sharded_blocks_.insert(block); }

  void begin() override;
  // Error(config) for a sequence length that the number of ranks does not divide. Error(config) also if the previous
  // block's output is a shard of sequences in another shape.
  Tensors enter(const std::string& block, Tensors inputs) override;
  void again(const std::string& block) override;
  Tensors leave(Tensors outputs) override;

  // Called after a column-parallel layer. Its output stays sharded until a row-parallel layer with `row_inputs` inputs
  // has run.
  void open(const at::Tensor& input, const at::Tensor& output, const DimensionShard& shard, int64_t row_inputs);
  // Called after a row-parallel layer with inputs of this width.
  void close(int64_t width);

  // Returns the sharding of an activation's last dimension; none: it is whole.
  std::optional<DimensionShard> sharding_of(const at::Tensor& activation) const;
  // Does the same for the last block's output, after `leave`.
  std::optional<DimensionShard> output_sharding(const at::Tensor& output) const;
  // Returns true for [B, shard of T, features]. `activation` must be whole in its last dimension.
  bool is_sequence_shard(const at::Tensor& activation) const;
  // True if a row-parallel layer's sum [B, T, features] becomes sequence shards.
  bool sum_becomes_shards(const at::Tensor& sum) const;
  // True if the result of an operation on this activation is partial. Then gradients of whole parameters are summed.
  bool is_part(const at::Tensor& activation) const;
  // Does the same for an operation with unknown input.
  bool is_part() const { return !open_.empty() || sequence_ > 0; }

 private:
  struct ShardingRegion {
    std::vector<int64_t> input, output;  // shapes
    DimensionShard shard;                // shard of the output's last dimension
    int64_t row_inputs = 0;              // inputs of the layer that closes the region
  };
  bool is_sequence(const at::Tensor& value) const;
  at::Tensor entering(const at::Tensor& value, const std::string& block);
  Tensors gathered(Tensors values, const std::string& where) const;
  void check_outputs(const Tensors& outputs) const;

  CommunicatorPtr group_;
  bool sequence_parallel_;
  std::set<std::string> sharded_blocks_;
  std::vector<ShardingRegion> open_;
  std::vector<ShardingRegion> outputs_;       // regions that were open when the last block ended
  int64_t sequence_ = 0;                      // length of the whole sequences that are sharded now; 0: none
  std::map<std::string, int64_t> sequences_;  // the same, by block, at its start
  std::string block_;                         // block that was entered last
  Tensors inputs_of_block_;                   // inputs of that block
};

// TensorGroup: state shared by all scopes of one rank's sharded layers.
struct TensorGroup {
  TensorGroup(CommunicatorPtr ranks, bool sequence_parallel, PlannedShards of_model)
      : group(std::move(ranks)),
        sharding(std::make_shared<ShardingState>(group, sequence_parallel)),
        planned(std::move(of_model)) {}

  // Returns the sharding of `whole` elements in `parts` over this group.
  DimensionShard shard(int64_t whole, int64_t parts = 1) const { return {whole, parts, group->rank(), group->size()}; }

  CommunicatorPtr group;
  std::shared_ptr<ShardingState> sharding;
  std::map<std::string, TensorShard> cuts;  // sharded parameters, by name
  PlannedShards planned;                    // parameters that other parts of the model make
};
using TensorGroupPtr = std::shared_ptr<TensorGroup>;

// LayerContext: a layer's canonical name, its group, and the state of the current forward.
struct LayerContext {
  std::string name;
  TensorGroupPtr group;
  StatePtr state;

  const CommunicatorPtr& ranks() const { return group->group; }
  ShardingState& sharding() const { return *group->sharding; }
};

}  // namespace convoy
