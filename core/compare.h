// Two states of one model, tensor by tensor: what `convoy verify` and the equivalence tests mean by equal results.
//
// The error of a tensor is max|a−b| ÷ max(max|b|, 1e-3 × the largest |b| of its kind in the model). b is the reference. The
// floor is there for tensors whose true value is zero, such as the gradient of a bias before batch norm: they hold rounding
// errors, which are measured against what is not zero.
// Threads: none of its own; reads only. Failure: what the views throw; a missing tensor is a difference and no failure.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/difference.h"

namespace convoy {

// A state as whole tensors, whatever layout held its pieces.
struct StateView {
  std::vector<std::string> keys;                             // StateEntry::key()
  std::function<at::Tensor(const std::string& key)> tensor;  // on any device; asked for once, one at a time
};

StateView view_of(const std::map<std::string, at::Tensor>& state);  // which must outlive the view

// One entry for each key of either, those of `b` first, in their order.
std::vector<TensorDifference> compare(const StateView& a, const StateView& b);

// The largest error among entries; null when there are none.
const TensorDifference* worst_of(const std::vector<TensorDifference>& differences);

}  // namespace convoy
