// One pass over parameters, gradients and moments: the optimizers' arithmetic on the CPU. Pure loops over [0, n).
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace convoy {

// While it exists, its thread computes with zeros in place of denormal numbers. The first moment of a parameter without
// gradients is one after about 830 updates, as are those of an input that is nearly always 0. Each operation on such a
// number takes more than a hundred cycles on Intel's processors. Does nothing on other architectures.
class DenormalsAreZero {
#if defined(__x86_64__)
 public:
  DenormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | results_to_zero | inputs_to_zero); }
  ~DenormalsAreZero() { _mm_setcsr(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
  static constexpr unsigned results_to_zero = 0x8000, inputs_to_zero = 0x0040;
  const unsigned before_;
#endif
};

// Scalars of one update of one member. Factors are computed in double and rounded once to the loop's type.
struct AdamStep {
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, eps = 0;
  double correction1 = 1;  // 1 - beta1^step
  double correction2 = 1;  // 1 - beta2^step
  double l2 = 0;           // added to the gradient, times the parameter
  double decay = 1;        // decoupled decay of the parameter
  double gradient_scale = 1;
};
void adam_loop(float* values, const float* gradient, float* mean, float* square, int64_t n, const AdamStep& step);
void adam_loop(double* values, const double* gradient, double* mean, double* square, int64_t n, const AdamStep& step);

// Returns the sum of squares in double. `finite`: false if any element is not finite; a sum of finite doubles may
// overflow.
double square_sum(const float* values, int64_t n, bool* finite);
double square_sum(const double* values, int64_t n, bool* finite);

// Sum of squares and finiteness of a flat tensor, in one pass, as tensors on its device, without a read to the host.
struct SquareSum {
  at::Tensor sum;     // float64 [members]
  at::Tensor finite;  // bool [members]: true if every element is finite
};

// `values`: [members, …] contiguous, or any shape for one member; any float dtype. An empty tensor gives sum 0 and
// finite true. On the CPU, ranges of fixed size are summed in order. So the result is equal for any number of threads
// and any instruction set.
SquareSum square_sum(const at::Tensor& values, int64_t members = 1);

// Result of square_sum for one member on the CPU, as plain numbers; makes no tensor for float or double.
struct HostSquareSum {
  double sum = 0;
  bool finite = true;
};
HostSquareSum host_square_sum(const at::Tensor& values);

}  // namespace convoy
