#include "core/tensors/products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

namespace convoy {
namespace {

at::Tensor drawn(const std::vector<int64_t>& shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::TensorOptions(dtype));
}

// `depth`: number of products in each sum.
void expect_near(const at::Tensor& result, const at::Tensor& exact, int64_t depth) {
  ASSERT_EQ(result.sizes(), exact.sizes());
  const double difference = (result.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(difference, 1e-5 + 4e-7 * double(depth)) << "depth " << depth;
}

at::Tensor exact_product(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).matmul(b.to(at::kDouble));
}

// n, k, m: small ones, which LibTorch's functions compute, and large ones, which oneDNN may compute.
const std::vector<std::array<int64_t, 3>> sizes{{3, 5, 7},       {1, 2048, 2048}, {2048, 2048, 1}, {2048, 1, 2048},
                                                {1024, 1024, 4}, {128, 784, 64},  {257, 129, 301}, {640, 256, 256}};

TEST(Products, EqualThoseInDoublePrecision) {
  for (const auto& [n, k, m] : sizes) {
    const at::Tensor a = drawn({n, k}), b = drawn({k, m});
    expect_near(product(a, b), exact_product(a, b), k);
    const at::Tensor a_turned = drawn({k, n}).t(), b_turned = drawn({m, k}).t();
    expect_near(product(a_turned, b), exact_product(a_turned, b), k);
    expect_near(product(a, b_turned), exact_product(a, b_turned), k);
    const at::Tensor part = drawn({n, 2 * k}).narrow(1, 0, k);  // rows with gaps
    expect_near(product(part, b_turned), exact_product(part, b_turned), k);
  }
}

TEST(Products, OverwriteOrAddToTheirOutput) {
  for (const auto& [n, k, m] : sizes) {
    const at::Tensor a = drawn({k, n}).t(), b = drawn({k, m});
    const at::Tensor out = at::full({n, m}, std::numeric_limits<float>::quiet_NaN());
    product_into(out, a, b, false);
    expect_near(out, exact_product(a, b), k);
    const at::Tensor before = out.to(at::kDouble);
    product_into(out, a, b, true);
    expect_near(out, before + exact_product(a, b), 2 * k);
    const at::Tensor wide = at::zeros({n, 2 * m}), half = wide.narrow(1, 0, m);
    product_into(half, a, b, true);
    expect_near(half, exact_product(a, b), k);
    EXPECT_EQ(wide.narrow(1, m, m).abs().max().item<float>(), 0);
  }
}

TEST(Products, OfABatchWhoseMatricesAreNotAdjacent) {
  const int64_t n = 128, k = 784, m = 64, members = 5;
  const at::Tensor input = drawn({members, n, k}), bias = drawn({members, m});
  const at::Tensor weight = drawn({members, 2, m, k}).select(1, 1);
  const at::Tensor exact = exact_product(input, weight.transpose(1, 2)), shift = bias.to(at::kDouble).unsqueeze(1);
  expect_near(batched_linear_product(input, weight, bias), exact + shift, k);
  expect_near(batched_linear_product(input, weight, {}), exact, k);
  const at::Tensor gradient = drawn({members, n, m}), turned = gradient.transpose(1, 2);
  const at::Tensor out = at::empty({members, m, k}, at::kFloat);
  product_into(out, turned, input, false);
  expect_near(out, exact_product(turned, input), n);
  expect_near(product(gradient, weight), exact_product(gradient, weight), m);
  for (const int64_t rows : {m, int64_t{4}}) {  // large matrices, and small ones
    const at::Tensor all = at::zeros({members, 2, rows, k}), gaps = all.select(1, 1);
    const at::Tensor few = turned.narrow(1, 0, rows);
    product_into(gaps, few, input, false);
    expect_near(gaps, exact_product(few, input), n);
    product_into(gaps, few, input, true);
    expect_near(gaps, 2 * exact_product(few, input), 2 * n);
    EXPECT_EQ(all.select(1, 0).abs().max().item<float>(), 0);
  }
  EXPECT_THROW(product_into(at::zeros({members, 2, m, k + 1}).select(1, 1), turned, input, true), c10::Error);
}

TEST(Products, LinearTakesAnyNumberOfDimensionsAndABias) {
  const at::Tensor weight = drawn({256, 300}), bias = drawn({256});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{300}, {64, 300}, {8, 32, 300}, {0, 300}}) {
    const at::Tensor input = drawn(shape), result = linear_product(input, weight, bias);
    const at::Tensor exact = at::linear(input.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
    ASSERT_EQ(result.sizes(), exact.sizes());
    if (input.numel() > 0) expect_near(result, exact, 300);
  }
}

TEST(Products, KeepTheGraphAndTheDtype) {
  const at::Tensor input = drawn({256, 512}).requires_grad_(), weight = drawn({256, 512}).requires_grad_();
  const at::Tensor bias = drawn({256}).requires_grad_();
  const at::Tensor output = linear_product(input, weight, bias);
  ASSERT_TRUE(output.requires_grad());
  output.sum().backward();
  expect_near(bias.grad(), at::full({256}, 256, at::kDouble), 1);
  EXPECT_TRUE(product(input, weight.t()).requires_grad());
  const at::Tensor a = drawn({256, 256}, at::kDouble);
  EXPECT_TRUE(at::equal(product(a, a), a.mm(a)));
}

TEST(Products, OfBatchesWithFewRowsAndOfOneMatrix) {
  for (const auto& [members, n] : std::vector<std::array<int64_t, 2>>{{10, 8}, {1, 256}, {3, 32}}) {
    const at::Tensor input = drawn({members, n, 300}), weight = drawn({members, 2, 200, 300}).select(1, 0);
    const at::Tensor exact = exact_product(input, weight.transpose(1, 2));
    expect_near(batched_linear_product(input, weight, {}), exact, 300);
    expect_near(product(input, weight.contiguous().transpose(1, 2)), exact, 300);
  }
}

TEST(Products, ReportWrongShapesAsLibTorchDoes) {
  const at::Tensor a = drawn({640, 255}), b = drawn({256, 256});
  try {
    product(a, b);
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("(640x255 and 256x256)"), std::string::npos) << error.what();
  }
  EXPECT_THROW(product(drawn({1, 256, 256}), drawn({4, 256, 256})), c10::Error);
  EXPECT_THROW(product_into(at::empty({640, 255}, at::kFloat), drawn({640, 256}), b, true), c10::Error);
}

TEST(Products, OfANegativeView) {
  const at::Tensor a = at::_neg_view(drawn({256, 256})), b = drawn({256, 256});
  expect_near(product(a, b), exact_product(a.resolve_neg(), b), 256);
}

TEST(Products, AreEqualEachTime) {
  const at::Tensor a = drawn({640, 256}), b = drawn({256, 256});
  const at::Tensor first = product(a, b);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(at::equal(product(a, b), first));
}

}  // namespace
}  // namespace convoy
