#include "strategies/parts/replicas/narrow_numbers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/frexp.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace convoy {
namespace {

constexpr int largest = 13;   // exponent that the largest number is brought to
constexpr int furthest = 60;  // whose inverse every dtype of gradients has

}  // namespace

at::ScalarType narrow_dtype(Compression numbers) {
  CONVOY_CHECK(numbers != Compression::none, "gradients are not narrowed");
  return numbers == Compression::fp16 ? at::kHalf : at::kBFloat16;
}

int narrow_power(double most) {
  if (most == 0 || !std::isfinite(most)) return 0;
  int exponent = 0;
  std::frexp(most, &exponent);
  return std::clamp(largest - exponent, -furthest, furthest);
}

at::Tensor narrow_power(const at::Tensor& numbers) {
  const auto [mantissa, exponent] = at::frexp(numbers.abs().amax());
  return (largest - exponent).clamp_(-furthest, furthest).to(numbers.scalar_type());
}

}  // namespace convoy
