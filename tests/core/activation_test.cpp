// relu after a sum: equals the separate operations in values and gradients.
#include "core/tensors/activation.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace convoy {
namespace {

struct Result {
  at::Tensor out, to_shared, to_own;
};

Result of(const at::Tensor& shared, const at::Tensor& own, const at::Tensor& factor, bool together) {
  const at::Tensor a = shared.detach().clone().requires_grad_(), b = own.detach().clone().requires_grad_();
  const at::Tensor out = together ? relu_of_sum(a, b) : at::relu(a.unsqueeze(-2) + b);
  torch::autograd::backward({(out * factor).sum()}, {});
  return {out.detach(), a.grad(), b.grad()};
}

void compare(const at::Tensor& shared, const at::Tensor& own) {
  const at::Tensor factor = at::randn(own.sizes(), own.options());
  const Result one = of(shared, own, factor, true), two = of(shared, own, factor, false);
  EXPECT_TRUE(at::equal(one.out, two.out));
  EXPECT_TRUE(at::equal(one.to_own, two.to_own));
  EXPECT_TRUE(at::allclose(one.to_shared, two.to_shared, 1e-5, 1e-6));
}

TEST(ReluOfSum, EqualsSeparateOperations) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    if (dtype == at::kBFloat16) {
      const at::Tensor shared = at::randn({3, 4}).to(dtype), own = at::randn({3, 2, 4}).to(dtype);
      EXPECT_TRUE(at::equal(relu_of_sum(shared, own), at::relu(shared.unsqueeze(-2) + own)));
      continue;
    }
    const auto options = at::TensorOptions(dtype);
    compare(at::randn({7, 5}, options), at::randn({7, 3, 5}, options));
    compare(at::randn({2, 7, 32}, options), at::randn({2, 7, 5, 32}, options));  // members
    compare(at::randn({7, 1}, options), at::randn({7, 1, 1}, options));
    compare(at::randn({7, 10}, options).slice(1, 2, 7), at::randn({3, 7, 5}, options).transpose(0, 1));
  }
}

TEST(ReluOfSum, BroadcastsMembers) {
  compare(at::randn({1, 7, 5}).expand({1, 7, 5}), at::randn({1, 7, 3, 5}));
  const at::Tensor shared = at::randn({1, 5}), own = at::randn({7, 3, 5});
  EXPECT_TRUE(at::equal(relu_of_sum(shared, own), at::relu(shared.unsqueeze(-2) + own)));
}

TEST(ReluOfSum, AcceptsNoRowsAndNoMembers) {
  compare(at::randn({0, 5}), at::randn({0, 3, 5}));
  const Result none = of(at::randn({4, 5}), at::randn({4, 0, 5}), at::randn({4, 0, 5}), true);
  EXPECT_EQ(none.out.sizes(), (std::vector<int64_t>{4, 0, 5}));
  EXPECT_TRUE(at::equal(none.to_shared, at::zeros({4, 5})));
}

TEST(ReluOfSum, KeepsNaN) {
  at::Tensor shared = at::zeros({1, 2});
  shared[0][0] = std::nan("");
  const at::Tensor out = relu_of_sum(shared, at::zeros({1, 1, 2}));
  EXPECT_TRUE(out[0][0][0].isnan().item<bool>());
  EXPECT_FALSE(out[0][0][1].isnan().item<bool>());
}

}  // namespace
}  // namespace convoy
