// A recorded step has the effect of the step itself; if recording is impossible, steps run normally. Without a GPU: the
// recording runs the step again with the input, and the host's decisions, at the time of recording.
#include "strategies/common/step/step_graph.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/registry.h"
#include "strategies/registry.h"
#include "tests/support/torch/rerun_graph.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

struct Result {
  std::map<std::string, at::Tensor> state;
  std::vector<double> losses;
  Counted counted;
};

// 20 steps over 3 full batches and a short one, at rates that change with every step.
Result trained(const Subject& subject, const std::string& strategy, const std::string& options,
               const std::string& graph, double wrong = 0) {
  Training training;
  training.optimizer = "{name: adamw, lr: 1.0e-2, schedule: {name: cosine, warmup: 5 steps}, clip_norm: 0.5}";
  const Layout layout{strategy, options, 1};
  const RunConfig config = test_config(layout, training);
  Result result;
  with_ranks(layout, config, [&](const Context& given) {
    Context context = given;
    context.steps_per_epoch = 4;
    context.total_steps = 20;
    context.config.strategy.options = Options([&] {
      Json section = context.config.strategy.options.json();
      section["graph"] = graph;
      return section;
    }());
    Registry registry;
    register_strategies(registry);
    auto made = registry.strategies.make(strategy, context.config.strategy.options);
    context.make_graph = [&](at::Device) -> std::unique_ptr<DeviceGraph> {
      return std::make_unique<Rerun>(*made, result.counted, wrong);
    };
    made->setup(context, subject.model(), subject.loss);
    const int64_t members = std::max<int64_t>(1, made->sampling().members), rows = subject.data.rows;
    const int64_t each = rows / 4 + 1;
    for (int64_t step = 0; step < 20; ++step) {
      const int64_t begin = (step % 4) * each, end = std::min(rows, begin + each);
      StepInput input{subject.data.slice(begin, end), step, end == rows};
      input.batch.first_row = 0;
      input.batch.global_rows = end - begin;
      input.batch.nominal_rows = each;
      if (strategy == "ensemble")
        for (auto& entry : input.batch.tensors) entry.second = entry.second.unsqueeze(0).repeat_interleave(members, 0);
      const StepResult done = made->step(input);
      const Metric& loss = done.metrics.front();
      result.losses.push_back((loss.sum.sum() / loss.weight.sum()).item<double>());
    }
    result.state = state_of(*made);
  });
  return result;
}

void expect_equal(const Result& graph, const Result& steps) {
  EXPECT_EQ(graph.losses, steps.losses);
  for (const auto& [key, value] : steps.state) {
    ASSERT_EQ(graph.state.count(key), 1u) << key;
    EXPECT_TRUE(at::allclose(graph.state.at(key), value, 0, 0, /*equal_nan=*/true)) << key;
  }
  EXPECT_EQ(graph.state.size(), steps.state.size());
}

TEST(StepGraph, LaunchesEqualSteps) {
  const std::string members = ", members: 3, how: stacked, vote: false";
  for (const auto& [subject, strategy, options] :
       {std::tuple<Subject, std::string, std::string>{pairs_subject(), "single", ""},
        {pairs_subject(), "ensemble", members},
        {mlp_subject(), "ensemble", members}}) {
    const Result steps = trained(subject, strategy, options, "never");
    const Result graph = trained(subject, strategy, options, "always");
    expect_equal(graph, steps);
    EXPECT_EQ(steps.counted.records, 0);
    EXPECT_EQ(graph.counted.records, 1) << strategy;
    EXPECT_EQ(graph.counted.launches, 11) << strategy << ": 15 full batches but the first four";
  }
}

TEST(StepGraph, IsComparedBeforeItsUse) {
  const Result steps = trained(pairs_subject(), "single", "", "never");
  const Result wrong = trained(pairs_subject(), "single", "", "auto", 1);
  expect_equal(wrong, steps);
  EXPECT_EQ(wrong.counted.launches, 1);
  // The faster of the two varies here; their results are equal.
  const Result either = trained(pairs_subject(), "single", "", "auto");
  expect_equal(either, steps);
  EXPECT_EQ(either.counted.records, 1);
  EXPECT_GE(either.counted.launches, 6);
}

TEST(StepGraph, IsNotRecordedWithHostRandomness) {
  const Subject subject = dropout_subject();
  const Result steps = trained(subject, "single", "", "never");
  const Result given_up = trained(subject, "single", "", "auto");
  expect_equal(given_up, steps);
  EXPECT_EQ(given_up.counted.records, 0);
  try {
    trained(subject, "single", "", "always");
    FAIL() << "recorded all the same";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("dropout"), std::string::npos) << error.what();
  }
}

TEST(StepGraph, IsNotRecordedUnderGradientAccumulation) {
  const Result steps = trained(pairs_subject(), "single", ", sync: {every: 2}", "never");
  const Result graph = trained(pairs_subject(), "single", ", sync: {every: 2}", "auto");
  expect_equal(graph, steps);
  EXPECT_EQ(graph.counted.records, 0);
}

}  // namespace
}  // namespace convoy::testing
