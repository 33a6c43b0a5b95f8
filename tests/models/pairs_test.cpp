#include "models/pairs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/tensors/random.h"

namespace convoy::testing {
namespace {

at::Tensor normal(at::IntArrayRef shape, const std::string& name) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_normal(out, random_key(5, name), 0, 0, 1);
  return out;
}

struct Case {
  int64_t rows, group, factors, features, context, item_numbers;
};

// Computes the pairs by operations on slices.
Pairs expected_of(const at::Tensor& user, const at::Tensor& item, const at::Tensor& context,
                  const at::Tensor& item_numbers, int64_t factors) {
  const int64_t features = user.size(-1) - factors;
  const at::Tensor other = user.narrow(-1, factors, features);
  return {user.narrow(-1, 0, factors).unsqueeze(-2) * item.narrow(-1, 0, factors),
          context.defined() ? at::cat({other, context}, -1) : other,
          item_numbers.defined() ? at::cat({item.narrow(-1, factors, features), item_numbers}, -1)
                                 : item.narrow(-1, factors, features)};
}

class PairsTest : public ::testing::TestWithParam<Case> {};

TEST_P(PairsTest, EqualSeparateOperationsInValuesAndGradients) {
  const Case c = GetParam();
  const int64_t width = c.factors + c.features;
  const at::Tensor context = c.context > 0 ? normal({c.rows, c.context}, "context") : at::Tensor();
  const at::Tensor item_numbers =
      c.item_numbers > 0 ? normal({c.rows, c.group, c.item_numbers}, "item numbers") : at::Tensor();
  std::vector<at::Tensor> gradients[2];
  std::vector<at::Tensor> values[2];
  for (const bool plain : {false, true}) {
    at::Tensor user = normal({c.rows, width}, "user").set_requires_grad(true);
    at::Tensor item = normal({c.rows, c.group, width}, "item").set_requires_grad(true);
    const Pairs pairs = plain ? expected_of(user, item, context, item_numbers, c.factors)
                              : pairs_of(user, item, context, item_numbers, c.factors);
    std::vector<at::Tensor> roots, given;
    for (const at::Tensor& one : {pairs.product, pairs.row, pairs.item}) {
      if (!one.defined() || one.size(-1) == 0) continue;
      values[plain].push_back(one.detach());
      roots.push_back(one);
      given.push_back(normal(one.sizes(), "gradient" + std::to_string(roots.size())));
    }
    torch::autograd::backward(roots, given);
    gradients[plain] = {user.grad(), item.grad()};
  }
  ASSERT_EQ(values[0].size(), values[1].size());
  for (size_t i = 0; i < values[0].size(); ++i) EXPECT_TRUE(values[0][i].equal(values[1][i])) << i;
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(gradients[0][i].sizes() == gradients[1][i].sizes());
    EXPECT_TRUE(gradients[0][i].allclose(gradients[1][i], 1e-14, 1e-14)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PairsTest,
                         ::testing::Values(Case{7, 5, 8, 32, 21, 0}, Case{7, 5, 8, 32, 0, 3}, Case{7, 5, 8, 32, 21, 2},
                                           Case{3, 1, 0, 6, 2, 1}, Case{4, 3, 6, 0, 0, 0}, Case{0, 5, 8, 32, 21, 2},
                                           Case{1, 2, 1, 1, 1, 1}));

// An input that no result uses has no gradient, and LibTorch handles inputs that only broadcast.
TEST(Pairs, AcceptTheGradientOfOneOutput) {
  at::Tensor user = normal({4, 10}, "user").set_requires_grad(true);
  at::Tensor item = normal({4, 3, 10}, "item").set_requires_grad(true);
  pairs_of(user, item, {}, {}, 4).item.sum().backward();
  at::Tensor expected = at::zeros({4, 3, 10}, at::kDouble);
  expected.narrow(-1, 4, 6).fill_(1);
  EXPECT_TRUE(item.grad().equal(expected));
  EXPECT_TRUE(!user.grad().defined() || user.grad().equal(at::zeros({4, 10}, at::kDouble)));

  // The gradient of a product that cat() joined with another tensor has gaps.
  at::Tensor grads[2];
  for (const bool joined : {false, true}) {
    const at::Tensor own = normal({4, 3, 10}, "item").set_requires_grad(true);
    const at::Tensor product = pairs_of(user, own, {}, {}, 4).product, weights = normal({4, 3, 6}, "weights");
    const at::Tensor sum = joined ? (at::cat({product, at::zeros({4, 3, 2}, at::kDouble)}, -1) * weights).sum()
                                  : (product * weights.narrow(-1, 0, 4)).sum();
    sum.backward();
    grads[joined] = own.grad();
  }
  EXPECT_TRUE(grads[0].equal(grads[1]));

  const Pairs stacked = pairs_of(normal({2, 4, 10}, "users"), normal({1, 4, 3, 10}, "items"), {}, {}, 4);
  EXPECT_EQ(stacked.product.sizes(), (std::vector<int64_t>{2, 4, 3, 4}));
}

}  // namespace
}  // namespace convoy::testing
