#include "core/optim/norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "core/base/error.h"
#include "core/optim/loops.h"

namespace convoy {
namespace {

constexpr int64_t block = 1 << 16;  // elements; fixed, because it determines the order of additions

template <class T>
void sum_member(const T* values, int64_t n, double* sum, bool* finite) {
  const int64_t blocks = (n + block - 1) / block;
  std::vector<double> sums(blocks);
  std::vector<unsigned char> finites(blocks);
  at::parallel_for(0, blocks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      bool all_finite = true;
      sums[p] = square_sum(values + p * block, std::min(block, n - p * block), &all_finite);
      finites[p] = all_finite;
    }
  });
  *sum = 0;
  *finite = true;
  for (int64_t p = 0; p < blocks; ++p) {
    *sum += sums[p];
    *finite = *finite && finites[p];
  }
}

}  // namespace

SquareSum square_sum(const at::Tensor& values, int64_t members) {
  at::NoGradGuard no_grad;
  CONVOY_CHECK(values.is_contiguous() && members > 0 && values.numel() % members == 0, "a buffer of ", values.numel(),
               " elements does not divide into ", members, " members");
  const auto doubles = values.options().dtype(at::kDouble).requires_grad(false);
  const bool native = values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble;
  if (!values.is_cpu() || !native) {
    const at::Tensor flat = values.detach().reshape({members, values.numel() / members});
    // In double from the start: the norm of half-precision gradients would overflow in their dtype.
    const at::Tensor norm = at::linalg_vector_norm(flat, 2, at::IntArrayRef{1}, false, at::kDouble);
    return {norm * norm, at::isfinite(norm)};
  }
  SquareSum result{at::empty({members}, doubles), at::empty({members}, doubles.dtype(at::kBool))};
  const int64_t n = values.numel() / members;
  double* sums = result.sum.data_ptr<double>();
  bool* finites = result.finite.data_ptr<bool>();
  for (int64_t m = 0; m < members; ++m) {
    if (values.scalar_type() == at::kFloat) {
      sum_member(values.const_data_ptr<float>() + m * n, n, sums + m, finites + m);
    } else {
      sum_member(values.const_data_ptr<double>() + m * n, n, sums + m, finites + m);
    }
  }
  return result;
}

HostSquareSum host_square_sum(const at::Tensor& values) {
  CONVOY_CHECK(values.is_cpu() && values.is_contiguous(), "a buffer to sum the squares of is contiguous, on the CPU");
  HostSquareSum result;
  if (values.scalar_type() == at::kFloat) {
    sum_member(values.const_data_ptr<float>(), values.numel(), &result.sum, &result.finite);
  } else if (values.scalar_type() == at::kDouble) {
    sum_member(values.const_data_ptr<double>(), values.numel(), &result.sum, &result.finite);
  } else {
    const SquareSum made = square_sum(values);
    result = {made.sum.const_data_ptr<double>()[0], made.finite.const_data_ptr<bool>()[0]};
  }
  return result;
}

}  // namespace convoy
