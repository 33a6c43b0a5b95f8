#include "strategies/tensor/sharding_state.h"

#include <ATen/core/Tensor.h>
#include <algorithm>

#include "core/base/error.h"
#include "strategies/plans/options/tensor_group.h"

namespace convoy {

void ShardingState::begin() {
  open_.clear();
  inputs_of_block_.clear();
  sequence_ = 0;
}

BlockBoundaries::Tensors ShardingState::enter(const std::string& block, Tensors inputs) {
  open_.clear();
  if (!sequence_parallel_) return inputs;
  check_outputs(inputs);
  if (sharded_blocks_.count(block) > 0) {
    for (at::Tensor& input : inputs) input = entering(input, block);
  } else if (sequence_ > 0) {
    inputs = gathered(std::move(inputs), block);
    sequence_ = 0;
  }
  sequences_[block] = sequence_;
  block_ = block;
  inputs_of_block_ = inputs;
  return inputs;
}

// Checks that only sequences with three dimensions are sharded, and that nothing else is computed from a shard. An
// input that a block returns unchanged is no shard. Tensors without gradient, such as masks, may have other shapes.
void ShardingState::check_outputs(const Tensors& outputs) const {
  if (sequence_ == 0) return;
  const int64_t share = sequence_ / group_->size();
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    const bool positions = output.dim() > 1 && (output.size(1) == share || output.size(1) == sequence_);
    if (output.dim() == 3 && positions) continue;
    if (!output.requires_grad() && (output.dim() < 2 || output.size(1) != share)) continue;
    const auto same = [&](const at::Tensor& given) {
      return given.defined() && given.is_alias_of(output) && given.sizes() == output.sizes();
    };
    if (std::any_of(inputs_of_block_.begin(), inputs_of_block_.end(), same)) continue;
    throw Error(Failure::config,
                "strategy.sequence_parallel: " +
                    flat_sequences_text(block_, convoy::str(output.sizes()), sequence_, group_->size()));
  }
}

void ShardingState::again(const std::string& block) {
  open_.clear();
  const auto known = sequences_.find(block);
  sequence_ = known == sequences_.end() ? 0 : known->second;
}

BlockBoundaries::Tensors ShardingState::leave(Tensors outputs) {
  check_outputs(outputs);
  inputs_of_block_.clear();
  outputs_ = std::move(open_);
  open_.clear();
  if (sequence_ > 0) outputs = gathered(std::move(outputs), "outputs");
  sequence_ = 0;
  return outputs;
}

bool ShardingState::is_sequence(const at::Tensor& value) const { return value.dim() == 3 && value.is_floating_point(); }

// Shards a sequence. The first one sets the length; tensors of another length are no sequences.
at::Tensor ShardingState::entering(const at::Tensor& value, const std::string& block) {
  if (!value.defined() || !is_sequence(value)) return value;
  const int64_t length = value.size(-2), ranks = group_->size();
  if (sequence_ == 0) {
    if (length % ranks != 0)
      throw Error(Failure::config, "sequence_parallel: block ", block, " receives sequences of ", length, ", which ",
                  ranks,
                  " ranks of the axis tensor do not divide; set data.length to a length that they divide, or set "
                  "strategy.sequence_parallel: false");
    sequence_ = length;
  }
  return length == sequence_ ? sequence_shard(value, group_, "sequences of " + block) : value;
}

BlockBoundaries::Tensors ShardingState::gathered(Tensors values, const std::string& where) const {
  for (at::Tensor& value : values)
    if (value.defined() && is_sequence_shard(value)) value = gathered_sequence(value, group_, "sequences of " + where);
  return values;
}

void ShardingState::open(const at::Tensor& input, const at::Tensor& output, const DimensionShard& shard,
                         int64_t row_inputs) {
  open_.push_back({input.sizes().vec(), output.sizes().vec(), shard, row_inputs});
}

void ShardingState::close(int64_t width) {
  const auto taken = [&](const ShardingRegion& region) { return region.row_inputs == width; };
  open_.erase(std::remove_if(open_.begin(), open_.end(), taken), open_.end());
}

std::optional<DimensionShard> ShardingState::sharding_of(const at::Tensor& activation) const {
  for (auto region = open_.rbegin(); region != open_.rend(); ++region)
    if (activation.sizes() == at::IntArrayRef(region->output)) return region->shard;
  for (const ShardingRegion& region : open_)
    if (activation.sizes() == at::IntArrayRef(region.input)) return std::nullopt;
  if (open_.empty() || activation.dim() == 0) return std::nullopt;
  return DimensionShard{activation.size(-1) * group_->size(), 1, group_->rank(), group_->size()};
}

std::optional<DimensionShard> ShardingState::output_sharding(const at::Tensor& output) const {
  for (const ShardingRegion& region : outputs_)
    if (output.dim() > 0 && output.size(-1) == region.shard.length()) return region.shard;
  return std::nullopt;
}

bool ShardingState::is_sequence_shard(const at::Tensor& activation) const {
  return sequence_ > 0 && is_sequence(activation) && activation.size(-2) * group_->size() == sequence_;
}

bool ShardingState::sum_becomes_shards(const at::Tensor& sum) const {
  return sequence_ > 0 && is_sequence(sum) && sum.size(-2) == sequence_;
}

bool ShardingState::is_part(const at::Tensor& activation) const {
  return sharding_of(activation).has_value() || is_sequence_shard(activation);
}

}  // namespace convoy
