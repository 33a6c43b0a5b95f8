// Default layers: initial values by name, dropout by global row, gradients in the strategy's memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/model.h"
#include "core/tensors/init.h"
#include "strategies/common/layers/default_layers.h"
#include "strategies/common/layers/linear_function.h"
#include "strategies/common/step/gradient_collector.h"
#include "tests/support/errors.h"
#include "tests/support/torch/random_tensors.h"

namespace convoy {
namespace {

std::shared_ptr<LayerStore> store_of(at::ScalarType dtype = at::kDouble, uint64_t seed = 5) {
  auto store = std::make_shared<LayerStore>();
  store->dtype = dtype;
  store->seed = store->state->seed = seed;
  return store;
}

TEST(DefaultLayers, InitialValuesDependOnNameAndSeedOnly) {
  auto first = store_of(), second = store_of(), other = store_of(at::kDouble, 6);
  DefaultLayers a(first), b(second), c(other);
  a.scope("x")->linear("one", 4, 3, {});
  a.linear("two", 5, 2, {});
  b.linear("two", 5, 2, {});
  b.scope("x")->linear("one", 4, 3, {});
  c.linear("two", 5, 2, {});
  EXPECT_EQ(first->parameters[0]->name, "x.one.weight");
  for (const auto& [name, parameter] : first->by_name)
    EXPECT_TRUE(parameter->value.equal(second->by_name.at(name)->value)) << name;
  EXPECT_FALSE(first->by_name.at("two.weight")->value.equal(other->by_name.at("two.weight")->value));
}

TEST(DefaultLayers, AShardsInitialValuesEqualThoseOfTheTensor) {
  const Init init{Init::Kind::normal, 0, 2};
  at::Tensor whole = at::empty({7, 5}, at::kFloat), piece = at::empty({11}, at::kFloat);
  fill_initial(whole, init, fans_of({7, 5}), 3, "w", 0);
  fill_initial(piece, init, fans_of({7, 5}), 3, "w", 13);
  EXPECT_TRUE(piece.equal(whole.view({-1}).narrow(0, 13, 11)));
}

TEST(DefaultLayers, BoundsFollowFanInAndFanOut) {
  auto store = store_of();
  DefaultLayers layers(store);
  layers.linear("l", 400, 100, {});
  layers.conv2d("c", 8, 16, 3, {});
  LinearOptions xavier;
  xavier.weight = {Init::Kind::xavier_uniform, 0, 0};
  layers.linear("x", 400, 200, xavier);
  const auto largest = [&](const char* name) { return store->by_name.at(name)->value.abs().max().item<double>(); };
  EXPECT_NEAR(largest("l.weight"), 1 / std::sqrt(400.0), 1e-4);
  EXPECT_NEAR(largest("l.bias"), 1 / std::sqrt(400.0), 2e-3);
  EXPECT_NEAR(largest("c.weight"), 1 / std::sqrt(72.0), 1e-3);
  EXPECT_NEAR(largest("x.weight"), std::sqrt(6.0 / 600), 1e-4);
}

TEST(DefaultLayers, ReportWrongRequestsAsErrorsOfTheModel) {
  DefaultLayers layers(store_of());
  layers.linear("l", 4, 3, {});
  EXPECT_NE(error_of([&] { layers.linear("l", 4, 3, {}); }).find("l.weight"), std::string::npos);
  LinearOptions tied;
  tied.tied_to = "nowhere.weight";
  EXPECT_NE(error_of([&] { layers.linear("t", 4, 3, tied); }).find("nowhere.weight"), std::string::npos);
  tied.tied_to = "l.weight";
  EXPECT_EQ(error_of([&] { layers.linear("t", 5, 3, tied); }).rfind("config", 0), 0u);
  EXPECT_NE(error_of([&] { layers.dropout("d", 1.0); }).find("dropout"), std::string::npos);
  Conv2dOptions groups;
  groups.groups = 3;
  EXPECT_NE(error_of([&] { layers.conv2d("c", 4, 6, 3, groups); }).find("groups"), std::string::npos);
}

TEST(DefaultLayers, LinearGradientsEqualAutograds) {
  auto store = store_of();
  DefaultLayers layers(store);
  Layer layer = layers.linear("l", 4, 3, {});
  Parameter& weight = *store->by_name.at("l.weight");
  Parameter& bias = *store->by_name.at("l.bias");
  const at::Tensor x = normal({2, 5, 4}, "x").set_requires_grad(true), seed = normal({2, 5, 3}, "seed");
  const at::Tensor reference = at::linear(x, weight.value, bias.value);
  const auto wanted = torch::autograd::grad({reference}, {x, weight.value, bias.value}, {seed});
  EXPECT_TRUE(layer->forward(x).allclose(reference, 1e-14, 1e-14));

  // Gradients are returned to the caller while no strategy collects …
  const auto returned = torch::autograd::grad({layer->forward(x)}, {x, weight.value, bias.value}, {seed});
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(returned[i].allclose(wanted[i], 1e-12, 1e-12)) << i;

  // … and written in place while one does: the first overwrites, the second adds.
  weight.gradient = at::full({3, 4}, 9.0, at::kDouble);
  bias.gradient = at::full({3}, 9.0, at::kDouble);
  store->state->collecting = true;
  for (int use = 1; use <= 2; ++use) {
    torch::autograd::backward({layer->forward(x)}, {seed});
    EXPECT_TRUE(weight.gradient.allclose(wanted[1] * use, 1e-12, 1e-12)) << use;
    EXPECT_TRUE(bias.gradient.allclose(wanted[2] * use, 1e-12, 1e-12)) << use;
    EXPECT_FALSE(weight.value.grad().defined());
  }
}

// Three members, with and without relu, by the loops of skinny layers and by products.
TEST(DefaultLayers, AStackOfLinearLayersEqualsItsMembers) {
  const auto state = std::make_shared<ForwardState>();
  const auto parameter = [](at::IntArrayRef shape, const char* name) {
    auto made = std::make_shared<Parameter>();
    made->value = normal(shape, name).set_requires_grad(true);
    return made;
  };
  for (const int64_t in : {4, 70})
    for (const bool relu : {false, true})
      for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{5}, {2, 5}, {}, {0}}) {
        SCOPED_TRACE(str(in, relu ? " relu " : " ", rows.size(), " dimensions of rows"));
        state->collecting = false;
        const ParameterPtr weight = parameter({3, 6, in}, "w"), bias = parameter({3, 6}, "b");
        std::vector<int64_t> shape{3}, wide{3};
        shape.insert(shape.end(), rows.begin(), rows.end());
        wide = shape;
        shape.push_back(in);
        wide.push_back(6);
        const at::Tensor x = normal(shape, "x").set_requires_grad(true), seed = normal(wide, "seed");
        TensorList members;
        for (int64_t m = 0; m < 3; ++m) {
          const at::Tensor own = at::linear(x[m], weight->value[m], bias->value[m]);
          members.push_back(relu ? own.relu() : own);
        }
        const TensorList leaves{x, weight->value, bias->value};
        const auto wanted = torch::autograd::grad({at::stack(members)}, leaves, {seed});
        const at::Tensor output = linear(x, weight, bias, state, relu);
        ASSERT_TRUE(output.allclose(at::stack(members), 1e-13, 1e-13));
        const auto returned = torch::autograd::grad({output}, leaves, {seed});
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(returned[i].allclose(wanted[i], 1e-12, 1e-12)) << i;
        // With create_graph: LibTorch's operators instead of loops.
        const auto graph = torch::autograd::grad({linear(x, weight, bias, state, relu)}, leaves, {seed}, true, true);
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(graph[i].allclose(wanted[i], 1e-12, 1e-12)) << i;
        weight->gradient = at::full({3, 6, in}, 9.0, at::kDouble);
        bias->gradient = at::full({3, 6}, 9.0, at::kDouble);
        state->collecting = true;
        for (int use = 1; use <= 2; ++use) {
          torch::autograd::backward({linear(x, weight, bias, state, relu)}, {seed});
          EXPECT_TRUE(weight->gradient.allclose(wanted[1] * use, 1e-12, 1e-12)) << use;
          EXPECT_TRUE(bias->gradient.allclose(wanted[2] * use, 1e-12, 1e-12)) << use;
        }
      }
}

TEST(DefaultLayers, LinearHasASecondDerivative) {
  auto store = store_of();
  DefaultLayers layers(store);
  Layer layer = layers.linear("l", 3, 3, {});
  Parameter& weight = *store->by_name.at("l.weight");
  for (const ParameterPtr& parameter : store->parameters) parameter->gradient = at::zeros_like(parameter->value);
  // A model that penalises the slope of its output differentiates it within its forward.
  const auto penalty = [&](bool plain) {
    const at::Tensor x = normal({4, 3}, "x").set_requires_grad(true);
    const at::Tensor y = plain ? at::linear(x, weight.value, store->by_name.at("l.bias")->value) : layer->forward(x);
    const at::Tensor slope = torch::autograd::grad({y.pow(2).sum()}, {x}, {}, true, true)[0];
    return y.sum() + slope.pow(2).sum();
  };
  const at::Tensor wanted = torch::autograd::grad({penalty(true)}, {weight.value})[0];
  const at::Tensor loss = penalty(false);
  EXPECT_TRUE(weight.gradient.equal(at::zeros({3, 3}, at::kDouble)));
  GradientCollector collector(store->parameters, store->state, [](int) {});
  collector.begin();
  store->state->collecting = true;
  torch::autograd::backward({loss}, {});
  EXPECT_TRUE(weight.gradient.allclose(wanted, 1e-12, 1e-12));
}

TEST(DefaultLayers, BatchNormIsFiniteForOneRowAndNone) {
  auto store = store_of();
  DefaultLayers layers(store);
  Layer layer = layers.batch_norm("b", 3, 1e-5, 0.1);
  store->state->training = true;
  for (int64_t rows : {1, 0}) {
    const at::Tensor out = layer->forward(normal({rows, 3}, "x"));
    EXPECT_TRUE(at::isfinite(out).all().item<bool>());
    EXPECT_TRUE(at::isfinite(store->buffers[1].value).all().item<bool>());
  }
  layer->forward(normal({4, 3}, "x"));
  EXPECT_GT(store->buffers[0].value.abs().max().item<double>(), 0);
}

TEST(DefaultLayers, RankOfTheTargetCountsTiesAgainstIt) {
  DefaultLayers layers(store_of());
  const at::Tensor logits = at::tensor({0.5, 2.0, 0.5, 3.0}, at::kDouble).view({1, 4}).repeat({3, 1});
  EXPECT_TRUE(layers.target_rank(logits, at::tensor({3, 1, 0}, at::kLong)).equal(at::tensor({0, 1, 3}, at::kLong)));
  EXPECT_EQ(layers.cross_entropy(at::zeros({0, 7, 4}), at::zeros({0, 7}, at::kLong)).sizes(), at::IntArrayRef({0, 7}));
}

class DropoutTest : public ::testing::Test {
 protected:
  DropoutTest() {
    state_.seed = 9;
    state_.training = true;
    state_.step = 4;
    state_.rows = 30;
  }
  at::Tensor mask(int64_t first, int64_t rows, at::IntArrayRef shape, double p = 0.3, const DropoutShard& cut = {}) {
    state_.first_row = first;
    state_.rows = rows;
    return dropout_mask(at::empty(shape, at::kDouble), p, "layer", state_, cut);
  }
  ForwardState state_;
};

TEST_F(DropoutTest, SharesDropTheSameElementsAsTheBatch) {
  const at::Tensor whole = mask(0, 30, {30, 37});
  EXPECT_TRUE(mask(0, 11, {11, 37}).equal(whole.narrow(0, 0, 11)));
  EXPECT_TRUE(mask(11, 19, {19, 37}).equal(whole.narrow(0, 11, 19)));
  EXPECT_EQ(mask(30, 0, {0, 37}).numel(), 0);
  // Rows of flattened tensors are still the leading dimension.
  EXPECT_TRUE(mask(10, 20, {20 * 37}).equal(whole.narrow(0, 10, 20).reshape({-1})));
}

TEST_F(DropoutTest, ShardedLayersDropTheSameElements) {
  const at::Tensor whole = mask(0, 6, {6, 5, 24});
  EXPECT_TRUE(mask(0, 6, {6, 5, 9}, 0.3, {8, 24}).equal(whole.narrow(2, 8, 9)));
}

TEST_F(DropoutTest, KeepsTheFractionAndTheMean) {
  for (double p : {0.1, 0.5, 0.9}) {
    const at::Tensor drawn = mask(0, 200, {200, 500}, p);
    const double kept = (drawn > 0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(kept, 1 - p, 4 * std::sqrt(p * (1 - p) / 1e5) + 1e-5);
    EXPECT_NEAR(drawn.max().item<double>(), 1 / (1 - p), 1e-3);
  }
}

TEST_F(DropoutTest, StepsLayersAndSeedsDiffer) {
  const at::Tensor base = mask(0, 30, {30, 40});
  state_.step = 5;
  EXPECT_FALSE(mask(0, 30, {30, 40}).equal(base));
  state_.step = 4;
  EXPECT_FALSE(dropout_mask(at::empty({30, 40}, at::kDouble), 0.3, "other", state_).equal(base));
  state_.seed = 10;
  EXPECT_FALSE(mask(0, 30, {30, 40}).equal(base));
}

TEST_F(DropoutTest, NeighbouringDrawsAreUncorrelated) {
  const at::Tensor drawn = (mask(0, 400, {400, 256}, 0.5) > 0).to(at::kDouble) - 0.5;
  const double bound = 4 * 0.25 / std::sqrt(1e5);
  EXPECT_NEAR((drawn.narrow(1, 0, 255) * drawn.narrow(1, 1, 255)).mean().item<double>(), 0, bound);
  EXPECT_NEAR((drawn.narrow(0, 0, 399) * drawn.narrow(0, 1, 399)).mean().item<double>(), 0, bound);
  EXPECT_NEAR((drawn.narrow(1, 0, 248) * drawn.narrow(1, 8, 248)).mean().item<double>(), 0, bound);
}

TEST_F(DropoutTest, FastDrawsDependOnTheRank) {
  state_.exact = false;
  const at::Tensor first = mask(0, 30, {30, 40});
  EXPECT_TRUE(mask(0, 30, {30, 40}).equal(first));
  state_.rank = 1;
  EXPECT_FALSE(mask(0, 30, {30, 40}).equal(first));
}

}  // namespace
}  // namespace convoy
