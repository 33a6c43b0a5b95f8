// The dynamic loss scaler, and strategies with gradients that overflow fp16.
#include "core/optim/precision.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>
#include <numeric>

#include "core/base/error.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

LossScaler scaler(double initial = 8, int64_t interval = 3) {
  return LossScaler(
      Options(Json{{"initial", initial}, {"growth", 2.0}, {"growth_interval", interval}, {"backoff", 0.5}}),
      at::kDouble);
}
void update(LossScaler& scaler, bool applied) { scaler.update(at::full({1}, applied, at::kBool)); }
double scale(const LossScaler& scaler) { return scaler.scale()[0].item<double>(); }

TEST(LossScaler, GrowsAfterFiniteUpdatesAndShrinksAtOnce) {
  LossScaler one = scaler();
  update(one, true);
  update(one, true);
  EXPECT_EQ(scale(one), 8);
  update(one, true);
  EXPECT_EQ(scale(one), 16);
  update(one, true);
  update(one, true);
  update(one, false);  // the streak begins again
  EXPECT_EQ(scale(one), 8);
  update(one, true);
  update(one, true);
  EXPECT_EQ(scale(one), 8);
  update(one, true);
  EXPECT_EQ(scale(one), 16);
  EXPECT_EQ(one.skipped()[0].item<int64_t>(), 1);
}

TEST(LossScaler, SkipsUpdatesThatASmallerScaleCanFix) {
  LossScaler one = scaler(2);
  const at::Tensor finite = at::full({}, true, at::kBool), other = at::full({}, false, at::kBool);
  EXPECT_TRUE(one.excuses(finite)[0].item<bool>());
  EXPECT_FALSE(one.excuses(other)[0].item<bool>());  // the loss itself
  update(one, false);
  EXPECT_EQ(scale(one), 1);
  EXPECT_FALSE(one.excuses(finite)[0].item<bool>());  // there is none that is smaller
  update(one, false);
  EXPECT_EQ(scale(one), 1);
}

Training halves() {
  Training training;
  training.precision = "fp16";
  training.optimizer = "{name: adamw, lr: 1.0e-2, schedule: {name: linear}}";
  return training;
}

std::vector<Layout> layouts(const std::string& more) {
  std::vector<Layout> all{{"single", more, 1}, {"ddp", more, 3}};
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    all.push_back({"fsdp", convoy::str(", shard: ", shard, more), 3});
  return all;
}

using Body = std::function<void(const Context&, Strategy&)>;
void half_run(const Layout& layout, const Subject& subject, const Body& body) {
  const RunConfig config = test_config(layout, halves());
  with_ranks(layout, config, [&](const Context& given) {
    Context context = given;
    context.steps_per_epoch = context.total_steps = 100;
    auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    body(context, *strategy);
  });
}

// This rank's share of all rows, with its row weights multiplied by `factor`.
StepInput input(const Subject& subject, const Strategy& strategy, int64_t step, double factor = 1) {
  const Sampling sampling = strategy.sampling();
  const auto [begin, end] = share_of(subject.data.rows, sampling.index, sampling.count);
  StepInput input{subject.data.slice(begin, end), step, true};
  input.batch.nominal_rows = input.batch.global_rows = subject.data.rows;
  for (auto& entry : input.batch.tensors)
    if (entry.first == "weight") entry.second = entry.second * factor;
  return input;
}

std::map<std::string, at::Tensor> shown(Strategy& strategy) {
  std::map<std::string, at::Tensor> state;
  strategy.visit_state([&](const StateEntry& entry) { state.emplace(entry.key(), entry.tensor.clone()); });
  return state;
}

TEST(HalfPrecision, TrainsWithFloatParameters) {
  const Subject subject = norms_subject();
  for (const Layout& layout : layouts("")) {
    Training training = halves();
    const Trajectory half = train(layout, subject, training);
    training.precision = "fp32";
    const Trajectory wide = train(layout, subject, training);
    EXPECT_EQ(half.final.at("parameter/blocks.0.linear.weight").scalar_type(), at::kFloat);
    EXPECT_NEAR(half.losses.back(), wide.losses.back(), 0.03) << to_string(layout);
    const auto pass = half.losses.begin() + 5;  // over the data
    EXPECT_LT(std::accumulate(pass, half.losses.end(), 0.0), std::accumulate(half.losses.begin(), pass, 0.0))
        << to_string(layout);
    EXPECT_NE(half.losses, wide.losses) << to_string(layout);
  }
}

// One rank's rows overflow: all ranks skip the update, halve the scale and continue; it is not a fault.
TEST(HalfPrecision, AllRanksSkipAnOverflowOfOne) {
  const Subject subject = pairs_subject();
  for (const Layout& layout : layouts("")) {
    half_run(layout, subject, [&](const Context& context, Strategy& strategy) {
      auto before = shown(strategy);
      const bool mine = context.rank == context.size - 1;
      StepResult result = strategy.step(input(subject, strategy, 0, mine ? 1e4 : 1));
      EXPECT_TRUE(result.finite.item<bool>()) << to_string(layout);
      EXPECT_TRUE(result.skipped.item<bool>()) << to_string(layout);
      EXPECT_EQ(result.learning_rate[0].item<double>(), 1e-2);
      auto after = shown(strategy);
      EXPECT_EQ(after.at("counter/loss_scale")[0].item<double>(), 32768);
      EXPECT_EQ(after.at("counter/skipped_updates")[0].item<int64_t>(), 1);
      EXPECT_EQ(after.at("counter/updates")[0].item<int64_t>(), 0);
      for (auto* state : {&before, &after})
        for (const char* key : {"counter/loss_scale", "counter/skipped_updates"}) state->erase(key);
      EXPECT_TRUE(bitwise_equal(before, after)) << to_string(layout);

      int64_t step = 1;
      for (; step < 30; ++step)
        if (!strategy.step(input(subject, strategy, step)).skipped.item<bool>()) break;
      EXPECT_LT(step, 30) << to_string(layout);
      EXPECT_EQ(shown(strategy).at("counter/updates")[0].item<int64_t>(), 1);
    });
  }
}

TEST(HalfPrecision, RefusesANonFiniteLoss) {
  const Subject subject = pairs_subject();
  for (const Layout& layout : layouts("")) {
    half_run(layout, subject, [&](const Context& context, Strategy& strategy) {
      const double factor = context.rank == context.size - 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
      const StepResult result = strategy.step(input(subject, strategy, 0, factor));
      EXPECT_FALSE(result.finite.item<bool>()) << to_string(layout);
      EXPECT_FALSE(result.skipped.item<bool>()) << to_string(layout);
    });
  }
}

// Scale, streak and schedule continue; skipped updates count.
TEST(HalfPrecision, ResumesBitForBit) {
  const Subject subject = pairs_subject();
  for (const Layout& layout : layouts(", loss_scale: {initial: 1048576, growth_interval: 2}")) {
    std::mutex mutex;
    std::map<int, std::map<std::string, at::Tensor>> saved, whole, resumed;
    double rate = 0, again = 0;
    half_run(layout, subject, [&](const Context& context, Strategy& strategy) {
      StepResult result;
      for (int64_t step = 0; step < 8; ++step) {
        if (step == 4) {
          const std::lock_guard<std::mutex> lock(mutex);
          saved[context.rank] = shown(strategy);
        }
        result = strategy.step(input(subject, strategy, step));
      }
      const std::lock_guard<std::mutex> lock(mutex);
      whole[context.rank] = shown(strategy);
      rate = result.learning_rate[0].item<double>();
    });
    EXPECT_GT(saved[0].at("counter/skipped_updates")[0].item<int64_t>(), 0) << to_string(layout);
    EXPECT_GT(whole[0].at("counter/updates")[0].item<int64_t>(), 0) << to_string(layout);
    half_run(layout, subject, [&](const Context& context, Strategy& strategy) {
      strategy.visit_state(
          [&](const StateEntry& entry) { entry.tensor.copy_(saved.at(context.rank).at(entry.key())); });
      strategy.state_restored();
      StepResult result;
      for (int64_t step = 4; step < 8; ++step) result = strategy.step(input(subject, strategy, step));
      const std::lock_guard<std::mutex> lock(mutex);
      resumed[context.rank] = shown(strategy);
      again = result.learning_rate[0].item<double>();
    });
    EXPECT_EQ(rate, again) << to_string(layout);
    for (const auto& [rank, state] : whole) EXPECT_TRUE(bitwise_equal(state, resumed[rank])) << to_string(layout);
  }
}

}  // namespace
}  // namespace convoy::testing
