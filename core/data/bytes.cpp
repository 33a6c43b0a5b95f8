// One loop on the CPU, where a cast and a product would each pass through memory.
#include "core/data/bytes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "core/vectorised.h"

namespace convoy {
namespace {

constexpr double unit = 1.0 / 255;

CONVOY_VECTORISED void scale_bytes(const uint8_t* __restrict from, float* __restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = float(from[i]) * float(unit);
}

}  // namespace

at::Tensor from_bytes(const at::Tensor& bytes, at::ScalarType dtype) {
  if (!bytes.is_cpu() || !bytes.is_contiguous()) return bytes.to(at::kFloat).mul_(unit).to(dtype);
  at::Tensor floats = at::empty(bytes.sizes(), bytes.options().dtype(at::kFloat));
  scale_bytes(bytes.const_data_ptr<uint8_t>(), floats.mutable_data_ptr<float>(), bytes.numel());
  return floats.to(dtype);
}

}  // namespace convoy
