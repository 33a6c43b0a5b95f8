// Full ranking leaves out the items that a user has, under every strategy and without help of the model.
#include <ATen/core/Tensor.h>
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
    MetricAccumulator figures;
    figures.add(strategy.evaluate(share(subject, strategy.sampling())));
    const auto reduced = figures.reduce(*context.world);
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

INSTANTIATE_TEST_SUITE_P(Layouts, FullRanking,
                         ::testing::Values(Layout{"single", "", 1}, Layout{"ddp", "", 2}, Layout{"pipeline", "", 2},
                                           Layout{"ensemble", ", members: 3, how: stacked", 1},
                                           Layout{"ensemble", ", members: 3, how: threads", 2}));

}  // namespace
}  // namespace convoy::testing
