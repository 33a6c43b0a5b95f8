// Full ranking leaves out the items that a user has, under every strategy and without help of the model.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/metrics/accumulator.h"
#include "tests/support/torch/model_subjects.h"

namespace convoy::testing {
namespace {

// Returns the metrics of an evaluation over all ranks.
std::map<std::string, double> evaluated(const Layout& layout, const Subject& subject) {
  std::map<std::string, double> values;
  const std::string failure = run(layout, subject, [&](const Context& context, Strategy& strategy) {
    MetricAccumulator metrics;
    metrics.add(strategy.evaluate(share(subject, strategy.sampling())));
    const auto reduced = metrics.reduce(*context.world);
    if (context.rank != 0) return;
    for (const auto& [name, value] : reduced) values[name] = value.value;
  });
  EXPECT_EQ(failure, "no error") << to_string(layout);
  return values;
}

Subject without(const at::Tensor& excluded) {
  Subject subject = ncf_subject();
  subject.data.tensors.emplace_back("excluded", excluded.expand({subject.data.rows, 5}).contiguous());
  return subject;
}

// The same rows with no candidate but the held-out item.
Subject held_out_alone() {
  Subject subject = ncf_subject();
  for (auto& [name, tensor] : subject.data.tensors)
    if (tensor.dim() > 1 && tensor.size(1) == 5) tensor = tensor.narrow(1, 0, 1).contiguous();
  return subject;
}

class FullRanking : public ::testing::TestWithParam<Layout> {};

TEST_P(FullRanking, ExcludesTheUsersPositives) {
  const at::Tensor none = at::zeros({5}, at::kBool), others = at::tensor({0, 1, 1, 1, 1}).to(at::kBool);
  const auto among_all = evaluated(GetParam(), without(none)), left = evaluated(GetParam(), without(others)),
             alone = evaluated(GetParam(), held_out_alone());
  ASSERT_EQ(left.size(), alone.size());
  EXPECT_EQ(alone.at("ndcg@2"), 1);
  for (const auto& [name, value] : alone) {
    EXPECT_NEAR(left.at(name), value, 1e-12) << name;
    EXPECT_GT(std::abs(among_all.at(name) - value), 1e-3) << name << " does not tell";
  }
}

// Every item of 30, in another order in each row, with several held-out ones first.
Subject all_items(bool parts) {
  Subject subject = ranking_subject();
  const auto model = subject.model;
  const int64_t rows = subject.data.rows, items = 30;
  TensorList order;
  for (int64_t row = 0; row < rows; ++row) order.push_back(at::arange(items, at::kLong).roll(row));
  at::Tensor target = at::zeros({rows, items}, at::kDouble);
  const at::Tensor held_out = at::arange(rows, at::kLong).remainder(3) + 1;
  for (int64_t row = 0; row < rows; ++row) target[row].narrow(0, 0, held_out[row].item<int64_t>()).fill_(1);
  for (auto& [name, tensor] : subject.data.tensors) {
    if (name == "item") tensor = at::stack(order);
    if (name == "target") tensor = target;
  }
  const at::Tensor excluded = at::arange(items, at::kLong).remainder(7).eq(6).expand({rows, items}).contiguous();
  subject.data.tensors.emplace_back("excluded", excluded);
  subject.data.tensors.emplace_back("held_out", held_out);
  if (parts) return subject;
  // A model without scores by parts.
  struct ByForward : WrappedModel {
    using WrappedModel::WrappedModel;
    std::shared_ptr<PairScorer> pair_scorer(const std::vector<BlockPtr>&) const override { return nullptr; }
  };
  subject.model = [model] { return std::make_shared<ByForward>(model()); };
  return subject;
}

TEST_P(FullRanking, PairScoresGiveTheSameMetrics) {
  const auto by_parts = evaluated(GetParam(), all_items(true)), by_forward = evaluated(GetParam(), all_items(false));
  ASSERT_EQ(by_parts.size(), by_forward.size());
  for (const auto& [name, value] : by_forward) EXPECT_NEAR(by_parts.at(name), value, 1e-12) << name;
  EXPECT_GT(by_forward.at("ndcg@2"), 0) << "nothing to compare";
}

INSTANTIATE_TEST_SUITE_P(Layouts, FullRanking,
                         ::testing::Values(Layout{"single", "", 1}, Layout{"ddp", "", 2}, Layout{"pipeline", "", 2},
                                           Layout{"ensemble", ", members: 3, how: stacked", 1},
                                           Layout{"ensemble", ", members: 3, how: threads", 2}));

}  // namespace
}  // namespace convoy::testing
