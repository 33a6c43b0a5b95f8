#include "strategies/parts/tensor/passage.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "core/error.h"

namespace convoy {

void Passage::begin() {
  open_.clear();
  given_.clear();
  sequence_ = 0;
}

BlockBorders::Tensors Passage::enter(const std::string& block, Tensors inputs) {
  open_.clear();
  if (!sequence_parallel_) return inputs;
  check_outputs(inputs);
  if (cut_blocks_.count(block) > 0) {
    for (at::Tensor& input : inputs) input = entering(input, block);
  } else if (sequence_ > 0) {
    inputs = gathered(std::move(inputs), block);
    sequence_ = 0;
  }
  sequences_[block] = sequence_;
  block_ = block;
  given_ = inputs;
  return inputs;
}

// An input that a block returns unchanged is no share: only sequences of three dimensions are cut.
void Passage::check_outputs(const Tensors& outputs) const {
  if (sequence_ == 0) return;
  const int64_t share = sequence_ / group_->size();
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || output.dim() < 2 || output.dim() == 3 || output.size(1) != share) continue;
    const auto same = [&](const at::Tensor& given) {
      return given.defined() && given.is_alias_of(output) && given.sizes() == output.sizes();
    };
    if (std::any_of(given_.begin(), given_.end(), same)) continue;
    throw Error(Failure::config,
                convoy::str("strategy.sequence_parallel: block ", block_, " returns ", output.sizes(),
                            " for sequences of ", sequence_, " positions, of which this rank has ", share,
                            "; between blocks only [rows, positions, features] can be cut: return that shape from ",
                            block_, ", or take sequence_parallel: false"));
  }
}

void Passage::again(const std::string& block) {
  open_.clear();
  const auto known = sequences_.find(block);
  sequence_ = known == sequences_.end() ? 0 : known->second;
}

BlockBorders::Tensors Passage::leave(Tensors outputs) {
  check_outputs(outputs);
  given_.clear();
  outputs_ = std::move(open_);
  open_.clear();
  if (sequence_ > 0) outputs = gathered(std::move(outputs), "outputs");
  sequence_ = 0;
  return outputs;
}

bool Passage::is_sequence(const at::Tensor& value) const { return value.dim() == 3 && value.is_floating_point(); }

// The first sequence says how long they are; what has another length is none.
at::Tensor Passage::entering(const at::Tensor& value, const std::string& block) {
  if (!value.defined() || !is_sequence(value)) return value;
  const int64_t length = value.size(-2), ranks = group_->size();
  if (sequence_ == 0) {
    if (length % ranks != 0)
      throw Error(
          Failure::config,
          convoy::str("sequence_parallel: block ", block, " is given sequences of ", length, ", which ", ranks,
                      " ranks of the axis tensor do not divide; take a length that they divide (data.length), or "
                      "strategy.sequence_parallel: false"));
    sequence_ = length;
  }
  return length == sequence_ ? own_sequence(value, group_, "sequences of " + block) : value;
}

BlockBorders::Tensors Passage::gathered(Tensors values, const std::string& where) const {
  for (at::Tensor& value : values)
    if (value.defined() && is_share_of_sequence(value))
      value = gathered_sequence(value, group_, "sequences of " + where);
  return values;
}

void Passage::open(const at::Tensor& input, const at::Tensor& output, const DimensionCut& cut) {
  open_.push_back({input.sizes().vec(), output.sizes().vec(), cut});
}

void Passage::close(int64_t width) {
  const auto taken = [&](const Region& region) { return region.cut.part() == width; };
  open_.erase(std::remove_if(open_.begin(), open_.end(), taken), open_.end());
}

std::optional<DimensionCut> Passage::cut_of(const at::Tensor& activation) const {
  for (auto region = open_.rbegin(); region != open_.rend(); ++region)
    if (activation.sizes() == at::IntArrayRef(region->output)) return region->cut;
  for (const Region& region : open_)
    if (activation.sizes() == at::IntArrayRef(region.input)) return std::nullopt;
  if (open_.empty() || activation.dim() == 0) return std::nullopt;
  return DimensionCut{activation.size(-1) * group_->size(), 1, group_->rank(), group_->size()};
}

std::optional<DimensionCut> Passage::cut_of_output(const at::Tensor& output) const {
  for (const Region& region : outputs_)
    if (output.dim() > 0 && output.size(-1) == region.cut.length()) return region.cut;
  return std::nullopt;
}

bool Passage::is_share_of_sequence(const at::Tensor& activation) const {
  return sequence_ > 0 && is_sequence(activation) && activation.size(-2) * group_->size() == sequence_;
}

bool Passage::sum_becomes_shares(const at::Tensor& sum) const {
  return sequence_ > 0 && is_sequence(sum) && sum.size(-2) == sequence_;
}

bool Passage::is_part(const at::Tensor& activation) const {
  return cut_of(activation).has_value() || is_share_of_sequence(activation);
}

}  // namespace convoy
