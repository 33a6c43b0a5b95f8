#include "models/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "core/error.h"

namespace convoy {

at::Tensor activated(const at::Tensor& input, const std::string& name) {
  if (name == "relu") return at::relu(input);
  if (name == "gelu") return at::gelu(input);
  if (name == "silu") return at::silu(input);
  CONVOY_CHECK(name == "tanh", "activation ", name);
  return at::tanh(input);
}

}  // namespace convoy
