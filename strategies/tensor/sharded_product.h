// Product of a linear layer with a sharded weight, with its collectives. Gradients are written as in
// strategies/common/layers/linear_function.h; the input's gradient is summed while the weight's is computed.
//
// Column: the weight has this rank's outputs. The input is whole, and its gradient is summed. With `shares` the input
// is this rank's shard of sequences. It is gathered without being kept, and backward gathers it again.
// Row: the weight has this rank's inputs, and the input is sharded too. The output is the sum over ranks plus bias, or
// with `shares` this rank's shard of sequences of that sum.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "core/communicator.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

struct ProductGroup {
  CommunicatorPtr group;
  std::string name;     // name of the layer, for stall reports
  bool shares = false;  // the whole side is sharded along the sequence: dimension −2
};

// input [.., in], weight [out of this rank, in], bias [out of this rank] or null → [.., out of this rank].
at::Tensor column_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const StatePtr& state, const ProductGroup& group);
// input [.., in of this rank], weight [out, in of this rank], bias [out] or null → [.., out].
at::Tensor row_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                       const StatePtr& state, const ProductGroup& group);

}  // namespace convoy
