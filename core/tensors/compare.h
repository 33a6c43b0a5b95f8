// Compares two states of one model, tensor by tensor. This defines equal results for `convoy verify` and the
// equivalence tests.
//
// The error of a tensor is max|a−b| ÷ max(max|b|, 1e-3 × the largest |b| of its kind in the model). b is the reference.
// The floor is for tensors with a true value of zero, such as the gradient of a bias before batch norm: they contain
// rounding errors only.
// Threads: single-threaded; reads only. Failure: exceptions of the views. A missing tensor is a difference, not an
// error.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/difference.h"

namespace convoy {

// A state as whole tensors, independent of the layout of its pieces.
struct StateView {
  std::vector<std::string> keys;                             // StateEntry::key()
  std::function<at::Tensor(const std::string& key)> tensor;  // on any device; called once per key, one at a time
};

// Returns one entry for each key of either state; those of `b` first, in their order.
std::vector<TensorDifference> compare(const StateView& a, const StateView& b);

}  // namespace convoy
