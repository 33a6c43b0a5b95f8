// Sum of squares and finiteness of flat tensors.
#include "core/optim/loops.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

namespace convoy {
namespace {

TEST(SquareSum, EqualsTheSumInDouble) {
  for (auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (int64_t n : {0, 1, 15, 17, 65536, 65537, 300001}) {
      const at::Tensor values = at::linspace(-3, 2, n, at::kDouble).to(dtype);
      const auto result = square_sum(values);
      const double expected = values.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(result.sum.item<double>(), expected, 1e-12 * (1 + expected)) << dtype << " " << n;
      EXPECT_TRUE(result.finite.item<bool>());
      EXPECT_EQ(result.sum.sizes(), at::IntArrayRef({1}));
    }
  }
}

TEST(SquareSum, FindsNonFiniteValuesAnywhere) {
  const double bad[] = {NAN, INFINITY, -INFINITY};
  for (auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (int64_t at : {0, 20, 65536, 99998, 99999}) {
      for (double value : bad) {
        at::Tensor values = at::ones({100000}, dtype);
        values[at] = value;
        EXPECT_FALSE(square_sum(values).finite.item<bool>()) << dtype << " " << at << " " << value;
      }
    }
  }
}

TEST(SquareSum, LargeButFiniteIsFinite) {
  const at::Tensor floats = at::full({100000}, std::numeric_limits<float>::max(), at::kFloat);
  EXPECT_TRUE(square_sum(floats).finite.item<bool>());
  EXPECT_TRUE(std::isfinite(square_sum(floats).sum.item<double>()));
  // The square of this overflows double, the element does not.
  EXPECT_TRUE(square_sum(at::full({100}, 1e300, at::kDouble)).finite.item<bool>());
}

TEST(SquareSum, SumsPerMember) {
  at::Tensor values = at::ones({3, 70000});
  values[1].mul_(2);
  values[2][69999] = NAN;
  const auto result = square_sum(values, 3);
  EXPECT_EQ(result.sum[0].item<double>(), 70000);
  EXPECT_EQ(result.sum[1].item<double>(), 280000);
  EXPECT_TRUE(result.finite.equal(at::tensor({1, 1, 0}).to(at::kBool)));
}

TEST(SquareSum, DoesNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const at::Tensor values = at::randn({1000003});
  at::set_num_threads(1);
  const double one = square_sum(values).sum.item<double>();
  at::set_num_threads(3);
  EXPECT_EQ(square_sum(values).sum.item<double>(), one);
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace convoy
