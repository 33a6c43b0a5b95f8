// The reduction of local and mpi, against LibTorch's own arithmetic.
#include "backends/communicator/reduce.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace convoy {
namespace {

at::Tensor reduce_tensors(const std::vector<at::Tensor>& in, ReduceOp op, at::Tensor out) {
  std::vector<const void*> pointers;
  for (const auto& one : in) pointers.push_back(one.data_ptr());
  reduce(out.data_ptr(), pointers, out.numel(), out.scalar_type(), op);
  return out;
}

TEST(Reduce, AddsTwoNumbersLikeLibTorch) {
  for (auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    at::Tensor a = (at::randn({5003}) * 100).to(dtype), b = at::randn({5003}).to(dtype);
    EXPECT_TRUE(at::equal(reduce_tensors({a, b}, ReduceOp::sum, at::empty_like(a)), a + b)) << dtype;
    EXPECT_TRUE(at::equal(reduce_tensors({a, b}, ReduceOp::product, at::empty_like(a)), a * b)) << dtype;
    EXPECT_TRUE(at::equal(reduce_tensors({a, b}, ReduceOp::max, at::empty_like(a)), at::maximum(a, b))) << dtype;
    EXPECT_TRUE(at::equal(reduce_tensors({a, b}, ReduceOp::min, at::empty_like(a)), at::minimum(a, b))) << dtype;
  }
}

TEST(Reduce, RoundsShortFloatsOnceAndKeepsSpecialValues) {
  for (auto dtype : {at::kHalf, at::kBFloat16}) {
    std::vector<at::Tensor> in;
    at::Tensor exact = at::zeros({1000});
    for (int i = 0; i < 4; ++i) {
      in.push_back(at::randn({1000}).to(dtype));
      exact = exact + in.back().to(at::kFloat);
    }
    EXPECT_TRUE(at::equal(reduce_tensors(in, ReduceOp::sum, at::empty_like(in[0])), exact.to(dtype)));
    at::Tensor odd = at::tensor({INFINITY, -INFINITY, NAN, 0.0f, 65504.0f, 6e-8f}).to(dtype);
    at::Tensor sum = reduce_tensors({odd, odd}, ReduceOp::sum, at::empty_like(odd));
    EXPECT_TRUE(at::allclose(sum, odd + odd, 0, 0, /*equal_nan=*/true)) << sum;
  }
}

TEST(Reduce, IntegersWrapAround) {
  at::Tensor a = at::tensor({250, 3}, at::kByte), b = at::tensor({10, 100}, at::kByte);
  EXPECT_TRUE(at::equal(reduce_tensors({a, b}, ReduceOp::sum, at::empty_like(a)), a + b));
  EXPECT_TRUE(at::equal(reduce_tensors({a, b}, ReduceOp::product, at::empty_like(a)), a * b));
  at::Tensor large = at::full({3}, std::numeric_limits<int64_t>::max(), at::kLong);
  EXPECT_TRUE(at::equal(reduce_tensors({large, large}, ReduceOp::sum, at::empty_like(large)), large + large));
}

TEST(Reduce, AddsInInputOrderAlsoInPlace) {
  for (int place = 0; place < 3; ++place) {
    std::vector<at::Tensor> in{at::full({3000}, 1e8f), at::full({3000}, 1.0f), at::full({3000}, -1e8f)};
    at::Tensor out = reduce_tensors(in, ReduceOp::sum, in[place]);
    EXPECT_TRUE(at::equal(out, at::full({3000}, (1e8f + 1.0f) - 1e8f)));
  }
}

TEST(Reduce, RefusesOtherDtypes) {
  at::Tensor a = at::zeros({1}, at::kComplexFloat);
  EXPECT_ANY_THROW(reduce_tensors({a, a}, ReduceOp::sum, a));
}

}  // namespace
}  // namespace convoy
