// Flat storage, the gradient collector, and the update at the end of every strategy's step.
#include "strategies/common/step/update.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "strategies/common/step/gradient_collector.h"
#include "tests/support/torch/equivalence.h"

namespace convoy {
namespace {

class UpdateTest : public ::testing::Test {
 protected:
  UpdateTest() {
    add("a.weight", at::arange(1, 7, at::kDouble).view({2, 3}));
    add("a.bias", at::ones({3}, at::kDouble));
    add("b.weight", at::full({5}, 2.0, at::kDouble));
  }

  void add(const char* name, const at::Tensor& value) {
    auto parameter = std::make_shared<Parameter>();
    parameter->name = name;
    parameter->value = value.clone().set_requires_grad(true);
    parameters_.push_back(parameter);
  }

  void make(const std::string& optimizer, const std::vector<std::vector<int>>& buckets = {{2, 1}, {0}}) {
    testing::Training training;
    training.optimizer = optimizer;
    context_.config = testing::test_config({}, training);
    context_.total_steps = context_.steps_per_epoch = 100;
    flat_ = std::make_unique<FlatParameters>(parameters_, buckets, context_.config.optimizer);
    update_ = std::make_unique<Update>(context_, 1);
    update_->attach(*flat_);
  }

  UpdateStatistics update(double gradient, double weight = 4, double nominal = 4) {
    for (const ParameterPtr& parameter : parameters_) parameter->gradient.fill_(gradient);
    flat_->add_to_header(at::scalar_tensor(weight), at::scalar_tensor(1.0), true);
    update_->begin(nominal);
    for (int bucket = 0; bucket < static_cast<int>(flat_->buckets().size()); ++bucket) update_->reduced(bucket);
    return update_->finish();
  }

  std::vector<ParameterPtr> parameters_;
  Context context_;
  std::unique_ptr<FlatParameters> flat_;
  std::unique_ptr<Update> update_;
};

TEST_F(UpdateTest, StoresParametersInOneFlatTensorByBucketAndGroup) {
  make("{name: sgd, lr: 0.5, weight_decay: 0.1, groups: [{match: bias, weight_decay: 0}]}");
  ASSERT_EQ(flat_->buckets().size(), 2u);
  EXPECT_EQ(flat_->buckets()[0].slots.size(), 2u);  // b.weight and a.bias decay differently
  EXPECT_EQ(flat_->buckets()[1].slots.size(), 1u);
  EXPECT_TRUE(parameters_[0]->value.is_leaf());
  EXPECT_TRUE(parameters_[0]->value.equal(at::arange(1, 7, at::kDouble).view({2, 3})));
  flat_->values(flat_->location(0).slot).fill_(7);
  EXPECT_TRUE(parameters_[0]->value.equal(at::full({2, 3}, 7.0, at::kDouble)));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(parameters_[1]->value.data_ptr()) % 64,
            reinterpret_cast<uintptr_t>(parameters_[0]->value.data_ptr()) % 64);
}

TEST_F(UpdateTest, ScalesGradientsByTheActualWeight) {
  make("{name: sgd, lr: 0.5}");
  const UpdateStatistics statistics = update(1, 2, 4);  // half of the nominal rows came
  EXPECT_TRUE(statistics.finite.item<bool>());
  EXPECT_DOUBLE_EQ(statistics.norm.item<double>(), 2 * std::sqrt(14.0));
  EXPECT_TRUE(parameters_[2]->value.allclose(at::full({5}, 2.0 - 0.5 * 2, at::kDouble)));
}

TEST_F(UpdateTest, ClippingScalesTheWholeGradient) {
  make("{name: sgd, lr: 1.0, clip_norm: 0.7}");
  const UpdateStatistics statistics = update(3);
  EXPECT_DOUBLE_EQ(statistics.norm.item<double>(), 3 * std::sqrt(14.0));
  EXPECT_NEAR((2 - parameters_[2]->value.min().item<double>()) * std::sqrt(14.0), 0.7, 1e-6);
}

TEST_F(UpdateTest, ClipsByTheNormOfTheMeanGradient) {
  make("{name: sgd, lr: 1.0, clip_norm: 0.7}");
  EXPECT_FALSE(update_->gradient(0).defined());
  update(3, /*weight=*/2, /*nominal=*/4);
  EXPECT_TRUE(update_->gradient(0).equal(at::full({2, 3}, 6.0, at::kDouble)));
  EXPECT_TRUE(update_->gradient(2).equal(at::full({5}, 6.0, at::kDouble)));
}

TEST_F(UpdateTest, NonFiniteGradientsChangeNothing) {
  make("{name: adam, lr: 0.1}");
  update(1);
  const at::Tensor before = flat_->values(0).clone(), moment = update_->moments(2)[0].second.clone();
  EXPECT_FALSE(update(std::numeric_limits<double>::infinity()).finite.item<bool>());
  flat_->add_to_header(at::scalar_tensor(4.0), at::scalar_tensor(std::numeric_limits<double>::quiet_NaN()), true);
  update_->begin(4);
  EXPECT_FALSE(update_->finish().finite.item<bool>());  // the gradients do not show it, the loss does
  EXPECT_TRUE(flat_->values(0).equal(before));
  EXPECT_TRUE(update_->moments(2)[0].second.equal(moment));
  EXPECT_EQ(update_->count()[0].item<int64_t>(), 1);
}

TEST_F(UpdateTest, ZeroWeightUpdatesWithZeroGradients) {
  make("{name: sgd, lr: 1.0}");
  EXPECT_TRUE(update(0, 0).finite.item<bool>());
  EXPECT_TRUE(parameters_[2]->value.equal(at::full({5}, 2.0, at::kDouble)));
}

TEST_F(UpdateTest, ANewLayoutKeepsValuesGradientsAndMoments) {
  make("{name: adam, lr: 0.1}");
  update(1);
  parameters_[1]->gradient.fill_(5);
  parameters_[1]->written = true;
  const at::Tensor value = parameters_[0]->value.clone(), moment = update_->moments(0)[1].second.clone();
  FlatParameters next(parameters_, {{0}, {1, 2}}, context_.config.optimizer);
  update_->attach(next);
  EXPECT_TRUE(parameters_[0]->value.equal(value));
  EXPECT_TRUE(parameters_[1]->gradient.equal(at::full({3}, 5.0, at::kDouble)));
  EXPECT_TRUE(update_->moments(0)[1].second.equal(moment));
  EXPECT_GT(moment.abs().max().item<double>(), 0);
}

// As in a run that continues with another batch size.
TEST_F(UpdateTest, TheScheduleContinuesAtARenumberedStep) {
  make("{name: sgd, lr: 1, schedule: {name: linear}}");
  update(0);
  EXPECT_DOUBLE_EQ(update(0).learning_rate.item<double>(), 0.99);
  update_->renumbered(50);
  EXPECT_DOUBLE_EQ(update(0).learning_rate.item<double>(), 0.5);
  EXPECT_EQ(update_->count().item<int64_t>(), 3);
}

TEST(UpdateCount, AnEpochsLastStepsMakeAnUpdate) {
  const UpdateCount updates{10, 4};
  EXPECT_EQ(updates.of(0), 0);
  EXPECT_EQ(updates.of(4), 1);
  EXPECT_EQ(updates.of(8), 2);
  EXPECT_EQ(updates.of(10), 3);
  EXPECT_EQ(updates.of(24), 7);
}

TEST_F(UpdateTest, CollectorTakesOverGradients) {
  make("{name: sgd, lr: 1.0}");
  auto state = std::make_shared<ForwardState>();
  std::vector<int> ready;
  GradientCollector collector(parameters_, state, [&](int index) { ready.push_back(index); });
  const auto backward = [&](bool with_bias) {
    ready.clear();
    at::Tensor loss = parameters_[0]->value.sum() * 2 + parameters_[0]->value.sum();  // used twice
    if (with_bias) loss = loss + parameters_[1]->value.sum();
    state->collecting = true;
    torch::autograd::backward({loss}, {});
    state->collecting = false;
  };
  collector.begin();
  backward(true);
  EXPECT_EQ(ready.size(), 2u);  // once for each parameter that took part
  backward(true);
  collector.finish();
  EXPECT_TRUE(parameters_[0]->gradient.equal(at::full({2, 3}, 6.0, at::kDouble)));
  EXPECT_TRUE(parameters_[1]->gradient.equal(at::full({3}, 2.0, at::kDouble)));
  EXPECT_FALSE(parameters_[0]->value.grad().defined());
  // A parameter that the next step does not use keeps no gradient of this step.
  collector.begin();
  backward(false);
  collector.finish();
  EXPECT_TRUE(parameters_[0]->gradient.equal(at::full({2, 3}, 3.0, at::kDouble)));
  EXPECT_TRUE(parameters_[1]->gradient.equal(at::zeros({3}, at::kDouble)));
}

TEST(FillBuckets, TheFirstIsSmallAndLargeTensorsAreAlone) {
  std::vector<ParameterPtr> parameters;
  for (int64_t size : {100, 50, 500, 10, 10}) {
    parameters.push_back(std::make_shared<Parameter>());
    parameters.back()->value = at::zeros({size}, at::kByte);
  }
  const std::vector<std::vector<int>> expected{{4, 3}, {2}, {1, 0}};
  EXPECT_EQ(fill_buckets(parameters, {4, 3, 2, 1, 0}, 20, 200), expected);
}

}  // namespace
}  // namespace convoy
