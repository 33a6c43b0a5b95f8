// Each body is written once and compiled for every type and instruction set. No temporaries: memory bandwidth is the
// limit.
#include "core/optim/loops.h"

#include <cmath>

#include "core/tensors/vectorised.h"

namespace convoy {
namespace {

CONVOY_BODY void adam_body(T* __restrict values, const T* __restrict gradient, T* __restrict mean, T* __restrict square,
                           int64_t n, const AdamStep& step) {
  const T scale = T(step.gradient_scale), l2 = T(step.l2), decay = T(step.decay), eps = T(step.eps);
  const T beta2 = T(step.beta2), rest1 = T(1 - step.beta1), rest2 = T(1 - step.beta2);
  const T rate = T(step.learning_rate / step.correction1), root = T(1 / std::sqrt(step.correction2));
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] * scale + l2 * values[i];
    const T m = mean[i] + rest1 * (g - mean[i]);
    const T v = beta2 * square[i] + rest2 * g * g;
    mean[i] = m;
    square[i] = v;
    values[i] = decay * values[i] - rate * m / (std::sqrt(v) * root + eps);
  }
}

CONVOY_BODY void momentum_body(T* __restrict values, const T* __restrict gradient, T* __restrict velocity, int64_t n,
                               const SgdStep& step) {
  const T scale = T(step.gradient_scale), l2 = T(step.l2), rate = T(step.learning_rate), momentum = T(step.momentum);
  // Nesterov's direction is g + momentum · velocity; without it the direction is the velocity.
  const T of_gradient = T(step.nesterov), of_velocity = step.nesterov ? momentum : T(1);
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] * scale + l2 * values[i];
    const T u = momentum * velocity[i] + g;
    velocity[i] = u;
    values[i] -= rate * (of_gradient * g + of_velocity * u);
  }
}

CONVOY_BODY void plain_body(T* __restrict values, const T* __restrict gradient, int64_t n, const SgdStep& step) {
  const T scale = T(step.gradient_scale), l2 = T(step.l2), rate = T(step.learning_rate);
  for (int64_t i = 0; i < n; ++i) values[i] -= rate * (gradient[i] * scale + l2 * values[i]);
}

// Uses sixteen sums: additions do not wait for each other, and their order does not depend on the instruction set.
CONVOY_BODY double square_body(const T* __restrict values, int64_t n, bool* finite) {
  constexpr int lanes = 16;
  double sums[lanes] = {}, marks[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int k = 0; k < lanes; ++k) {
      const double x = double(values[i + k]);
      sums[k] += x * x;
      if (sizeof(T) > 4) marks[k] += x * 0;  // NaN where x is not finite
    }
  }
  double sum = 0, mark = 0;
  for (int k = 0; k < lanes; ++k) {
    sum += sums[k];
    mark += marks[k];
  }
  for (; i < n; ++i) {
    const double x = double(values[i]);
    sum += x * x;
    mark += x * 0;
  }
  // Squares of finite floats cannot overflow a double, so for floats the sum alone decides.
  *finite = std::isfinite(sizeof(T) > 4 ? mark : sum);
  return sum;
}

}  // namespace

#define CONVOY_LOOPS(T)                                                                                        \
  CONVOY_VECTORISED void adam_loop(T* values, const T* gradient, T* mean, T* square, int64_t n,                \
                                   const AdamStep& step) {                                                     \
    adam_body(values, gradient, mean, square, n, step);                                                        \
  }                                                                                                            \
  CONVOY_VECTORISED void sgd_loop(T* values, const T* gradient, T* velocity, int64_t n, const SgdStep& step) { \
    if (velocity == nullptr) {                                                                                 \
      plain_body(values, gradient, n, step);                                                                   \
    } else {                                                                                                   \
      momentum_body(values, gradient, velocity, n, step);                                                      \
    }                                                                                                          \
  }                                                                                                            \
  CONVOY_VECTORISED double square_sum(const T* values, int64_t n, bool* finite) {                              \
    return square_body(values, n, finite);                                                                     \
  }

CONVOY_LOOPS(float)
CONVOY_LOOPS(double)

}  // namespace convoy
