// The measure of the error between tensors, also with infinities and NaN.
#include "core/tensors/compare.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/torch/state_view.h"

namespace convoy {
namespace {

using State = std::map<std::string, at::Tensor>;

State state() {
  return {{"parameter/a.weight", at::arange(1, 13, at::kDouble).view({3, 4})},
          {"parameter/a.bias", at::full({3}, 1e-9, at::kDouble)},
          {"gradient/a.weight", at::full({3, 4}, -1e-6, at::kDouble)},
          {"moment/exp_avg/a.weight", at::zeros({3, 4}, at::kDouble)},
          {"counter/updates", at::full({1}, 3, at::kLong)}};
}

TensorDifference of(const std::vector<TensorDifference>& all, const std::string& kind, const std::string& name) {
  for (const TensorDifference& difference : all)
    if (difference.kind == kind && difference.name == name) return difference;
  ADD_FAILURE() << kind << " of " << name << " is not listed";
  return {};
}

std::vector<TensorDifference> between(const State& a, const State& b) { return compare(view_of(a), view_of(b)); }

TEST(Compare, AStateEqualsItself) {
  State copy;
  for (const auto& [key, tensor] : state()) copy[key] = tensor.clone();
  const auto all = between(copy, state());
  ASSERT_EQ(all.size(), 5u);
  for (const TensorDifference& difference : all) {
    EXPECT_EQ(difference.relative, 0) << difference.name;
    EXPECT_TRUE(difference.same_bytes) << difference.name;
    EXPECT_EQ(difference.fault, "") << difference.name;
  }
  EXPECT_EQ(of(all, "exp_avg", "a.weight").shape, (std::vector<int64_t>{3, 4}));
}

TEST(Compare, MeasuresAnElementRelativeToTheLargest) {
  State changed = state();
  changed["parameter/a.weight"] = changed["parameter/a.weight"].clone();
  changed["parameter/a.weight"][0][0] += 0.6;
  const auto all = between(changed, state());
  const TensorDifference weight = of(all, "parameter", "a.weight");
  EXPECT_NEAR(weight.absolute, 0.6, 1e-15);
  EXPECT_NEAR(weight.relative, 0.6 / 12, 1e-15);
  EXPECT_FALSE(weight.same_bytes);
  EXPECT_EQ(of(all, "gradient", "a.weight").relative, 0);
  EXPECT_EQ(worst_of(all)->name, "a.weight");
}

// A tensor that is zero except for rounding is measured relative to its kind, and not to another kind.
TEST(Compare, MeasuresSmallTensorsRelativeToTheirKind) {
  State changed = state();
  changed["parameter/a.bias"] = at::zeros({3}, at::kDouble);
  EXPECT_NEAR(of(between(changed, state()), "parameter", "a.bias").relative, 1e-9 / (1e-3 * 12), 1e-12);
  changed["gradient/a.weight"] = at::full({3, 4}, -2e-6, at::kDouble);
  EXPECT_NEAR(of(between(changed, state()), "gradient", "a.weight").relative, 1, 1e-9);
}

TEST(Compare, ADifferenceFromZerosIsLarge) {
  State changed = state();
  changed["moment/exp_avg/a.weight"] = at::full({3, 4}, 1e-30, at::kDouble);
  EXPECT_GT(of(between(changed, state()), "exp_avg", "a.weight").relative, 1);
}

TEST(Compare, NonFiniteValuesNeverAgree) {
  for (double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    State changed = state();
    changed["parameter/a.bias"] = at::full({3}, value, at::kDouble);
    EXPECT_TRUE(std::isinf(of(between(changed, state()), "parameter", "a.bias").relative));
    EXPECT_TRUE(std::isinf(of(between(state(), changed), "parameter", "a.bias").relative));
    EXPECT_TRUE(std::isinf(of(between(changed, changed), "parameter", "a.bias").relative));
  }
}

TEST(Compare, NamesMissingTensorsOnEitherSide) {
  State fewer = state();
  fewer.erase("gradient/a.weight");
  const TensorDifference missing = of(between(fewer, state()), "gradient", "a.weight");
  EXPECT_NE(missing.fault.find("missing"), std::string::npos);
  EXPECT_TRUE(std::isinf(missing.relative));
  const TensorDifference more = of(between(state(), fewer), "gradient", "a.weight");
  EXPECT_NE(more.fault.find("no tensor of that name"), std::string::npos);
  EXPECT_TRUE(std::isinf(more.relative));
}

TEST(Compare, RefusesADifferentShapeWithEqualElements) {
  State other = state();
  other["parameter/a.weight"] = other["parameter/a.weight"].view({4, 3});
  const TensorDifference weight = of(between(other, state()), "parameter", "a.weight");
  EXPECT_EQ(weight.fault, "has shape [4, 3], the reference's has [3, 4]");
  EXPECT_TRUE(std::isinf(weight.relative));
}

TEST(Compare, FindsDifferentBytesOfEqualValues) {
  State other = state();
  other["moment/exp_avg/a.weight"] = -other["moment/exp_avg/a.weight"];  // -0.0
  const TensorDifference moment = of(between(other, state()), "exp_avg", "a.weight");
  EXPECT_EQ(moment.relative, 0);
  EXPECT_FALSE(moment.same_bytes);
  other["parameter/a.weight"] = other["parameter/a.weight"].to(at::kFloat);
  EXPECT_FALSE(of(between(other, state()), "parameter", "a.weight").same_bytes);
}

TEST(Compare, ReadsBackFromJson) {
  State other = state();
  other.erase("parameter/a.bias");
  other["parameter/a.weight"] = other["parameter/a.weight"] + 1;
  const StepDifferences step{4, between(other, state())};
  const StepDifferences back = step_differences_from_json(Json::parse(to_json(step).dump()));
  EXPECT_EQ(back.step, 4);
  ASSERT_EQ(back.tensors.size(), step.tensors.size());
  for (size_t i = 0; i < step.tensors.size(); ++i) {
    EXPECT_EQ(back.tensors[i].kind, step.tensors[i].kind);
    EXPECT_EQ(back.tensors[i].name, step.tensors[i].name);
    EXPECT_EQ(back.tensors[i].shape, step.tensors[i].shape);
    EXPECT_EQ(back.tensors[i].relative, step.tensors[i].relative);
    EXPECT_EQ(back.tensors[i].same_bytes, step.tensors[i].same_bytes);
    EXPECT_EQ(back.tensors[i].fault, step.tensors[i].fault);
  }
}

}  // namespace
}  // namespace convoy
