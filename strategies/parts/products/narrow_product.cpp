#include "strategies/parts/products/narrow_product.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>

#include "core/vectorised.h"
#include "strategies/parts/products/narrow_loops.h"

namespace convoy {
namespace {

constexpr int64_t widest = 64;      // features; of more, weights leave the nearest cache
constexpr int64_t grain = 1 << 16;  // products a thread takes at least
constexpr int64_t summed = 256;     // rows whose sum is a term of the sum, as in the loops

int64_t rows_of(const at::Tensor& tensor) { return tensor.numel() / tensor.size(-1); }

int64_t rows_a_thread(int64_t depth, int64_t width) { return std::max<int64_t>(1, grain / (depth * width)); }

// Weights as the loops want them: [depth, width] with rows padded_width(width) apart.
template <class T>
struct Padded {
  alignas(64) std::array<T, widest * widest> values;
  Padded(const T* from, int64_t depth, int64_t width, bool turned) {
    const int64_t apart = padded_width<T>(width);
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t c = 0; c < width; ++c) values[k * apart + c] = turned ? from[c * depth + k] : from[k * width + c];
    for (int64_t k = 0; k < depth; ++k) std::fill_n(&values[k * apart + width], apart - width, T(0));
  }
};

template <class T>
void product(const at::Tensor& rows, const Padded<T>& weights, const T* first, const at::Tensor& out, bool relu) {
  const int64_t depth = rows.size(-1), width = out.size(-1);
  const T* const from = rows.const_data_ptr<T>();
  T* const to = out.mutable_data_ptr<T>();
  at::parallel_for(0, rows_of(rows), rows_a_thread(depth, width), [&](int64_t begin, int64_t end) {
    narrow_loops(T()).front().product(from + begin * depth, weights.values.data(), first, to + begin * width,
                                      end - begin, depth, width, relu);
  });
}

template <class T>
inline __attribute__((always_inline)) void relu_body(const T* __restrict gradient, const T* __restrict output,
                                                     T* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = output[i] <= 0 ? T(0) : gradient[i];
}

template <class T>
inline __attribute__((always_inline)) void sum_body(const T* __restrict rows, T* __restrict out, int64_t n,
                                                    int64_t width, bool add) {
  if (!add) std::fill_n(out, width, T(0));
  for (int64_t begin = 0; begin < n; begin += summed) {
    T part[widest] = {};
    for (int64_t r = begin; r < std::min(n, begin + summed); ++r)
      for (int64_t c = 0; c < width; ++c) part[c] += rows[r * width + c];
    for (int64_t c = 0; c < width; ++c) out[c] += part[c];
  }
}

#define CONVOY_NARROW_PASSES(T)                                                                \
  CONVOY_VECTORISED void relu_loop(const T* gradient, const T* output, T* to, int64_t n) {     \
    relu_body(gradient, output, to, n);                                                        \
  }                                                                                            \
  CONVOY_VECTORISED void sum_loop(const T* rows, T* out, int64_t n, int64_t width, bool add) { \
    sum_body(rows, out, n, width, add);                                                        \
  }

CONVOY_NARROW_PASSES(float)
CONVOY_NARROW_PASSES(double)

}  // namespace

bool narrow_operand(const at::Tensor& gradient, at::ScalarType dtype) {
  return gradient.scalar_type() == dtype && gradient.is_cpu() && !at::isTensorSubclassLike(gradient);
}

bool narrow(const at::Tensor& input, const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) && weight.is_cpu() && weight.dim() == 2 &&
         weight.is_contiguous() && weight.numel() > 0 && weight.size(0) <= widest && weight.size(1) <= widest &&
         input.dim() > 0 && input.size(-1) == weight.size(1) && input.numel() > 0 && narrow_operand(input, dtype) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

bool narrow_sum(const at::Tensor& rows, const at::Tensor& out) {
  const auto dtype = out.scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) && narrow_operand(rows, dtype) && out.is_contiguous() &&
         out.numel() <= widest && rows.dim() == 2 && rows.numel() > 0;
}

at::Tensor narrow_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, bool relu) {
  const at::Tensor rows = input.contiguous();
  std::vector<int64_t> shape = input.sizes().vec();
  const int64_t depth = shape.back(), width = shape.back() = weight.size(0);
  at::Tensor out = at::empty(shape, weight.options().requires_grad(false));
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "narrow_linear", [&] {
    const Padded<scalar_t> weights(weight.const_data_ptr<scalar_t>(), depth, width, true);
    std::array<scalar_t, widest> first{};
    if (bias.defined()) std::copy_n(bias.const_data_ptr<scalar_t>(), width, first.begin());
    product<scalar_t>(rows, weights, bias.defined() ? first.data() : nullptr, out, relu);
  });
  return out;
}

at::Tensor narrow_relu_gradient(const at::Tensor& gradient, const at::Tensor& output) {
  const at::Tensor given = gradient.contiguous(), kept = output.contiguous();
  at::Tensor out = at::empty_like(given);
  AT_DISPATCH_FLOATING_TYPES(given.scalar_type(), "narrow_relu_gradient", [&] {
    const auto* from = given.const_data_ptr<scalar_t>();
    const auto* positive = kept.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, given.numel(), grain, [&](int64_t begin, int64_t end) {
      relu_loop(from + begin, positive + begin, to + begin, end - begin);
    });
  });
  return out;
}

at::Tensor narrow_input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  const at::Tensor rows = gradient.contiguous();
  at::Tensor out = at::empty({rows.size(0), weight.size(1)}, rows.options());
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "narrow_input_gradient", [&] {
    const Padded<scalar_t> weights(weight.const_data_ptr<scalar_t>(), weight.size(0), weight.size(1), false);
    product<scalar_t>(rows, weights, nullptr, out, false);
  });
  return out;
}

void narrow_weight_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& out, bool add) {
  const at::Tensor left = gradient.contiguous(), right = input.contiguous();
  const int64_t n = left.size(0), height = left.size(1), width = right.size(1);
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "narrow_weight_gradient", [&] {
    const auto* l = left.const_data_ptr<scalar_t>();
    const auto* r = right.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    // By rows of the result, so that no sum depends on the number of threads.
    at::parallel_for(0, height, std::max<int64_t>(1, grain / (n * width)), [&](int64_t begin, int64_t end) {
      narrow_loops(scalar_t()).front().outer(l + begin, r, to + begin * width, n, height, end - begin, width, add);
    });
  });
}

void narrow_bias_gradient(const at::Tensor& gradient, const at::Tensor& out, bool add) {
  const at::Tensor rows = gradient.contiguous();
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "narrow_bias_gradient", [&] {
    sum_loop(rows.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), rows.size(0), rows.size(1), add);
  });
}

}  // namespace convoy
