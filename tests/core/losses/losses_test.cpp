// Losses as sums and weights: plain, weighted, uneven, over members, and in half precision.
#include "core/losses/losses.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/losses/catalogue/catalogue.h"
#include "core/registry.h"
#include "tests/models/counting_layers.h"

namespace convoy {
namespace {

// The only functions of Layers that a loss uses.
class LossLayers : public CountingLayers {
 public:
  explicit LossLayers(int64_t members = 0) : members_(members) {}
  at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) override {
    return -at::log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1);
  }
  int64_t members() const override { return members_; }

 private:
  int64_t members_;
};

double value(const at::Tensor& tensor) { return tensor.item<double>(); }
Options options(Json json) { return Options(std::move(json)); }

TEST(Losses, BceEqualsTorch) {
  LossLayers layers;
  const at::Tensor logits = at::randn({6, 5}, at::kDouble), target = at::rand({6, 5}, at::kDouble).round();
  const Loss loss = (*make_bce({}))({logits, target, {}}, layers);
  EXPECT_NEAR(value(loss.sum), value(at::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::Sum)),
              1e-12);
  EXPECT_EQ(value(loss.weight), 30);
  EXPECT_EQ(loss.sum.dim(), 0);
  const Loss smooth = (*make_bce(options({{"label_smoothing", 0.2}})))({logits, target, {}}, layers);
  EXPECT_NEAR(value(smooth.sum),
              value(at::binary_cross_entropy_with_logits(logits, target * 0.8 + 0.1, {}, {}, at::Reduction::Sum)),
              1e-12);
}

// Values where a careless formula loses all digits, targets between 0 and 1, and a gradient of the gradient.
TEST(Losses, BceIsExactAndTwiceDifferentiable) {
  LossLayers layers;
  const at::Tensor values = at::tensor({-800.0, -30.0, -1e-9, 0.0, 2.0, 30.0, 800.0});
  const at::Tensor target = at::tensor({0.0, 1.0, 0.25, 0.5, 1.0, 1.0, 1.0});
  std::vector<at::Tensor> sums, firsts, seconds;
  for (const bool torch : {false, true}) {
    const at::Tensor logits = values.clone().requires_grad_();
    sums.push_back(torch ? at::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::Sum)
                         : (*make_bce({}))({logits, target, {}}, layers).sum);
    firsts.push_back(torch::autograd::grad({sums.back()}, {logits}, {}, true, true)[0]);
    seconds.push_back(torch::autograd::grad({firsts.back().square().sum()}, {logits})[0]);
  }
  EXPECT_TRUE(sums[0].equal(sums[1]));
  EXPECT_TRUE(firsts[0].equal(firsts[1]));
  EXPECT_TRUE(at::allclose(seconds[0], seconds[1], 1e-14, 0));
  // With a large loss, a term of 1e-13 remains exact.
  EXPECT_EQ(value((*make_bce({}))({at::tensor({30.0}), at::tensor({1.0}), {}}, layers).sum),
            std::log1p(std::exp(-30.0)));
}

TEST(Losses, DropALastDimensionOfOne) {
  LossLayers layers;
  const at::Tensor prediction = at::randn({4, 1}), target = at::randn({4});
  EXPECT_NEAR(value((*make_mse({}))({prediction, target, {}}, layers).sum),
              value((prediction.squeeze(1) - target).square().sum()), 1e-5);
}

TEST(Losses, WeightsPerRowAndPerElement) {
  LossLayers layers;
  const at::Tensor prediction = at::randn({4, 3}), target = at::randn({4, 3});
  const at::Tensor squares = (prediction - target).square();
  const at::Tensor rows = at::tensor({0.0f, 1.0f, 2.0f, 0.5f});
  const Loss by_row = (*make_mse({}))({prediction, target, rows}, layers);
  EXPECT_NEAR(value(by_row.sum), value((squares * rows.unsqueeze(1)).sum()), 1e-4);
  EXPECT_NEAR(value(by_row.weight), 3 * 3.5, 1e-6);
  const at::Tensor elements = at::rand({4, 3});
  const Loss by_element = (*make_mse({}))({prediction, target, elements}, layers);
  EXPECT_NEAR(value(by_element.sum), value((squares * elements).sum()), 1e-4);
  EXPECT_NEAR(value(by_element.weight), value(elements.sum()), 1e-5);
}

// Every member has the same loss as alone, for any shared inputs.
TEST(Losses, KeepMembersSeparate) {
  constexpr int64_t members = 3, rows = 4, classes = 5;
  LossLayers stacked(members), single;
  const at::Tensor scores = at::randn({members, rows, classes}, at::kDouble);
  const at::Tensor marks = at::rand({members, rows, classes}, at::kDouble).round();
  const at::Tensor classes_of = at::randint(classes, {members, rows}, at::kLong);
  const at::Tensor weight = at::rand({members, rows}, at::kDouble);
  struct One {
    const char* name;
    std::shared_ptr<const LossFunction> loss;
    at::Tensor target;
  };
  for (const One& one : {One{"bce", make_bce({}), marks}, One{"mse", make_mse({}), marks},
                         One{"cross_entropy", make_cross_entropy({}), classes_of}, One{"bpr", make_bpr({}), marks}}) {
    for (const bool shared : {false, true}) {
      for (const bool weighted : {false, true}) {
        const auto part = [&](const at::Tensor& tensor, int64_t m) { return shared ? tensor[0] : tensor[m]; };
        const Loss all = (*one.loss)({scores, shared ? one.target[0] : one.target,
                                      !weighted ? at::Tensor()
                                      : shared  ? weight[0]
                                                : weight},
                                     stacked);
        ASSERT_EQ(all.sum.sizes(), at::IntArrayRef({members})) << one.name;
        ASSERT_EQ(all.weight.sizes(), at::IntArrayRef({members})) << one.name;
        for (int64_t m = 0; m < members; ++m) {
          const Loss alone =
              (*one.loss)({scores[m], part(one.target, m), weighted ? part(weight, m) : at::Tensor()}, single);
          EXPECT_NEAR(value(all.sum[m]), value(alone.sum), 1e-12) << one.name << shared << weighted;
          EXPECT_NEAR(value(all.weight[m]), value(alone.weight), 1e-12) << one.name << shared << weighted;
        }
      }
    }
  }
}

TEST(Losses, SharesAddUpToTheWhole) {
  LossLayers layers;
  const at::Tensor prediction = at::randn({7, 2}, at::kDouble), target = at::rand({7, 2}, at::kDouble);
  const at::Tensor weight = at::rand({7}, at::kDouble);
  for (const auto& loss : {make_bce({}), make_mse({}), make_bpr({})}) {
    const Loss whole = (*loss)({prediction, target, weight}, layers);
    double sum = 0, total = 0;
    for (auto [begin, end] : {std::pair{0, 4}, {4, 4}, {4, 7}}) {  // one share without rows
      const Loss part =
          (*loss)({prediction.slice(0, begin, end), target.slice(0, begin, end), weight.slice(0, begin, end)}, layers);
      sum += value(part.sum);
      total += value(part.weight);
    }
    EXPECT_NEAR(sum, value(whole.sum), 1e-12);
    EXPECT_NEAR(total, value(whole.weight), 1e-12);
  }
}

TEST(Losses, CrossEntropySmoothsAndIgnores) {
  LossLayers layers;
  const at::Tensor logits = at::randn({2, 4, 6}, at::kDouble);  // rows, positions, classes
  at::Tensor target = at::randint(6, {2, 4}, at::kLong);
  target[0][1] = -1;
  target[1][3] = -1;
  const Loss loss =
      (*make_cross_entropy(options({{"label_smoothing", 0.1}, {"ignore", -1}})))({logits, target, {}}, layers);
  const at::Tensor expected =
      at::cross_entropy_loss(logits.reshape({8, 6}), target.reshape({8}), {}, at::Reduction::Sum, -1, 0.1);
  EXPECT_NEAR(value(loss.sum), value(expected), 1e-12);
  EXPECT_EQ(value(loss.weight), 6);
  const at::Tensor weight = at::tensor({2.0, 3.0}, at::kDouble);
  EXPECT_EQ(value((*make_cross_entropy(options({{"ignore", -1}})))({logits, target, weight}, layers).weight), 15);
}

TEST(Losses, BprComparesTheFirstWithTheOthers) {
  LossLayers layers;
  const at::Tensor scores = at::tensor({2.0, 1.0, 5.0}, at::kDouble).reshape({1, 3});
  const Loss loss = (*make_bpr({}))({scores, {}, {}}, layers);
  EXPECT_NEAR(value(loss.sum), std::log1p(std::exp(-1.0)) + std::log1p(std::exp(3.0)), 1e-12);
  EXPECT_EQ(value(loss.weight), 2);
}

TEST(Losses, GradientsReachThePrediction) {
  LossLayers layers;
  for (const auto& loss : {make_bce({}), make_mse({}), make_bpr({})}) {
    at::Tensor prediction = at::randn({3, 2}).requires_grad_();
    const Loss result = (*loss)({prediction, at::ones({3, 2}), {}}, layers);
    EXPECT_FALSE(result.weight.requires_grad());
    result.sum.backward();
    EXPECT_TRUE(prediction.grad().ne(0).all().item<bool>());
  }
}

TEST(Losses, SumHalfPrecisionInFloat) {
  LossLayers layers;
  const at::Tensor prediction = at::full({70000}, 2, at::kHalf), target = at::zeros({70000}, at::kHalf);
  const Loss loss = (*make_mse({}))({prediction, target, {}}, layers);
  EXPECT_EQ(loss.sum.scalar_type(), at::kFloat);
  EXPECT_EQ(value(loss.sum), 280000);  // beyond fp16
  EXPECT_EQ(value(loss.weight), 70000);
}

TEST(Losses, ReportMismatchedShapes) {
  LossLayers layers;
  const auto refused = [&](const std::shared_ptr<const LossFunction>& loss, at::Tensor prediction, at::Tensor target) {
    try {
      (*loss)({prediction, target, {}}, layers);
      return false;
    } catch (const Error& error) {
      return error.kind() == Failure::config;
    }
  };
  EXPECT_TRUE(refused(make_bce({}), at::zeros({4, 3}), at::zeros({4})));
  EXPECT_TRUE(refused(make_mse({}), at::zeros({4}), at::zeros({5})));
  EXPECT_TRUE(refused(make_cross_entropy({}), at::zeros({4}), at::zeros({4}, at::kLong)));
  EXPECT_TRUE(refused(make_cross_entropy({}), at::zeros({4, 3}), at::zeros({4, 3}, at::kLong)));
  EXPECT_TRUE(refused(make_bpr({}), at::zeros({4, 1}), at::zeros({4, 1})));
  EXPECT_TRUE(refused(make_bpr({}), at::zeros({4}), at::zeros({4})));
}

TEST(Losses, CatalogueAndRegistryAreTheSame) {
  Registry registry;
  register_core(registry);
  for (const Entry& entry : loss_catalogue()) {
    EXPECT_FALSE(entry.help.empty());
    EXPECT_NE(registry.losses.make(entry.name, {}), nullptr) << entry.name;
  }
  EXPECT_EQ(registry.losses.names().size(), loss_catalogue().size());
}

TEST(Losses, RowCrossEntropyEqualsTorch) {
  for (const int64_t classes : {1, 2, 10, 63, 64, 500}) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor values = at::randn({classes, 37}, dtype).t() * 20;  // not contiguous
      const at::Tensor target = at::randint(classes, {37}, at::kLong), weight = at::rand({37}, dtype);
      at::Tensor results[2], gradients[2];
      for (const bool ours : {false, true}) {
        const at::Tensor logits = values.detach().clone().requires_grad_();
        const at::Tensor loss =
            ours ? row_cross_entropy(logits, target) : at::cross_entropy_loss(logits, target, {}, at::Reduction::None);
        (loss * weight).sum().backward();
        results[ours] = loss.detach(), gradients[ours] = logits.grad();
      }
      const double tolerance = dtype == at::kFloat ? 2e-5 : 1e-13;
      EXPECT_LE(value((results[0] - results[1]).abs().max().to(at::kDouble)), tolerance) << classes;
      EXPECT_LE(value((gradients[0] - gradients[1]).abs().max().to(at::kDouble)), tolerance) << classes;
    }
  }
}

TEST(Losses, RowCrossEntropyOfUnusualRows) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor logits =
      at::tensor({1e30, -1e30, 0.0, -infinity, 1.0, 2.0, infinity, 0.0, 0.0, std::nan(""), 0.0, 0.0}, at::kDouble)
          .view({4, 3});
  for (const int64_t one : {0, 1, 2}) {
    const at::Tensor target = at::full({4}, one, at::kLong);
    const at::Tensor exact = at::cross_entropy_loss(logits, target, {}, at::Reduction::None);
    EXPECT_TRUE(at::allclose(row_cross_entropy(logits, target), exact, 0, 0, /*equal_nan=*/true)) << one;
  }
  EXPECT_EQ(row_cross_entropy(at::zeros({0, 3}), at::zeros({0}, at::kLong)).numel(), 0);
  EXPECT_THROW(row_cross_entropy(logits, at::full({4}, 3, at::kLong)), c10::Error);
  EXPECT_EQ(value(row_cross_entropy(logits, at::full({4}, -100, at::kLong)).sum()), 0);  // LibTorch ignores this class
}

}  // namespace
}  // namespace convoy
