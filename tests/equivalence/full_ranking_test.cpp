// Under full ranking the items that a user has are left out for every strategy, by no work of the model's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/metrics/accumulator.h"
#include "tests/support/torch/model_subjects.h"

namespace convoy::testing {
namespace {

// The metrics of all ranks together, of an evaluation where `excluded` [rows, 5] are left out.
std::map<std::string, double> evaluated(const Layout& layout, const at::Tensor& excluded) {
  Subject subject = ncf_subject();
  subject.data.tensors.emplace_back("excluded", excluded.expand({subject.data.rows, 5}).contiguous());
  std::map<std::string, double> values;
  const std::string failure = run(layout, subject, [&](const Context& context, Strategy& strategy) {
    Batch batch = share(subject, strategy.sampling());
    MetricAccumulator figures;
    figures.add(strategy.evaluate(batch));
    const auto reduced = figures.reduce(*context.world);
    if (context.rank != 0) return;
    for (const auto& [name, value] : reduced) values[name] = value.value;
  });
  EXPECT_EQ(failure, "no error") << to_string(layout);
  return values;
}

class FullRanking : public ::testing::TestWithParam<Layout> {};

TEST_P(FullRanking, LeavesOutWhatTheUserHas) {
  const at::Tensor none = at::zeros({5}, at::kBool), others = at::tensor({0, 1, 1, 1, 1}).to(at::kBool);
  const auto among_all = evaluated(GetParam(), none), alone = evaluated(GetParam(), others);
  int ranked = 0;
  for (const auto& [name, value] : alone) {
    if (name.find("ndcg@2") == std::string::npos) continue;
    ++ranked;
    EXPECT_EQ(value, 1) << name << ": the held-out item is the only one that counts";
    EXPECT_LT(among_all.at(name), 1) << name;
  }
  EXPECT_GE(ranked, 1);
  // One example in five is left in the loss, and it is the positive, whose loss starts at log 2 like the others'.
  EXPECT_NEAR(alone.at("loss"), std::log(2.0), 0.2);
  EXPECT_NE(alone.at("loss"), among_all.at("loss"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, FullRanking,
                         ::testing::Values(Layout{"single", "", 1}, Layout{"ddp", "", 2}, Layout{"pipeline", "", 2},
                                           Layout{"ensemble", ", members: 3, how: stacked", 1},
                                           Layout{"ensemble", ", members: 3, how: threads", 2}));

}  // namespace
}  // namespace convoy::testing
