#include "core/data/bytes.h"

#include <ATen/ATen.h>

namespace convoy {

at::Tensor from_bytes(const at::Tensor& bytes, at::ScalarType dtype) {
  return bytes.to(at::kFloat).mul_(1.0 / 255).to(dtype);
}

}  // namespace convoy
