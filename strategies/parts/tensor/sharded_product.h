// The product of a linear layer whose weight is cut among the ranks of a tensor group, with its exchanges: gradients
// are written as in parts/linear_function.h, and the input's are summed while the weight's is computed.
//
// Column: the weight has this rank's outputs. The input is whole, its gradient is summed; or it is this rank's share
// of sequences (`shares`), which is gathered and not kept: backward gathers it again.
// Row: the weight has this rank's inputs, the input is cut likewise. The output is the sum over the ranks and then
// the bias, or this rank's share of sequences of that.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "core/communicator.h"
#include "strategies/parts/parameter.h"

namespace convoy {

struct ProductGroup {
  CommunicatorPtr group;
  std::string name;     // of the layer, for stalls
  bool shares = false;  // the whole side is shares of sequences: dimension −2
};

// input [.., in], weight [out of this rank, in], bias [out of this rank] or null → [.., out of this rank].
at::Tensor column_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                          const std::shared_ptr<const ForwardState>& state, const ProductGroup& group);
// input [.., in of this rank], weight [out, in of this rank], bias [out] or null → [.., out].
at::Tensor row_product(const at::Tensor& input, const ParameterPtr& weight, const ParameterPtr& bias,
                       const std::shared_ptr<const ForwardState>& state, const ProductGroup& group);

}  // namespace convoy
