// What Gloo and NCCL ask of c10d in its own terms: operations, and the lengths of parts.
#pragma once
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "backends/group.h"

namespace convoy {

inline c10d::ReduceOp translate(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

inline std::vector<int64_t> lengths(const Offsets& parts) {
  std::vector<int64_t> all(parts.size() - 1);
  for (size_t i = 0; i < all.size(); ++i) all[i] = parts[i + 1] - parts[i];
  return all;
}

}  // namespace convoy
