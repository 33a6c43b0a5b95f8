// Activations by name.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace convoy {
// relu | gelu | silu | tanh, elementwise; the options' description has made sure of the name.
at::Tensor activated(const at::Tensor& input, const std::string& name);
}  // namespace convoy
