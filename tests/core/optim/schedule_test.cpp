// Learning-rate schedules at their corners.
#include <gtest/gtest.h>

#include <cmath>

#include "core/config/run_config.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/optim/optimizer.h"

namespace convoy {
namespace {

Json interval(int64_t every, const char* unit) { return {{"every", every}, {"unit", unit}}; }

Schedule schedule(Json options, int64_t total = 100, int64_t per_epoch = 20) {
  if (!options.contains("warmup")) options["warmup"] = interval(0, "never");
  return Schedule({"sgd", Options(Json{{"lr", 0.5}, {"schedule", options}})}, total, per_epoch);
}

TEST(Schedule, Constant) {
  const auto s = schedule({{"name", "constant"}});
  for (int64_t update : {0, 1, 99, 1000}) EXPECT_EQ(s.learning_rate(update), 0.5);
}

TEST(Schedule, WarmupRisesLinearly) {
  const auto s = schedule({{"name", "constant"}, {"warmup", interval(10, "steps")}});
  EXPECT_DOUBLE_EQ(s.learning_rate(0), 0.05);
  EXPECT_DOUBLE_EQ(s.learning_rate(4), 0.25);
  EXPECT_DOUBLE_EQ(s.learning_rate(9), 0.5);
  EXPECT_DOUBLE_EQ(s.learning_rate(10), 0.5);
  const auto epochs = schedule({{"name", "constant"}, {"warmup", interval(1, "epochs")}});
  EXPECT_DOUBLE_EQ(epochs.learning_rate(9), 0.25);
  EXPECT_DOUBLE_EQ(epochs.learning_rate(20), 0.5);
}

TEST(Schedule, LinearAndCosineEndAtTheirTarget) {
  for (const char* name : {"linear", "cosine"}) {
    const auto s = schedule({{"name", name}, {"final", 0.2}, {"warmup", interval(20, "steps")}});
    EXPECT_DOUBLE_EQ(s.learning_rate(20), 0.5) << name;
    EXPECT_NEAR(s.learning_rate(60), 0.3, 1e-12) << name;  // half way: (1 + 0.2) / 2 of it
    EXPECT_NEAR(s.learning_rate(100), 0.1, 1e-12) << name;
    EXPECT_NEAR(s.learning_rate(500), 0.1, 1e-12) << name;  // and stay there
  }
  const auto cosine = schedule({{"name", "cosine"}, {"final", 0.0}});
  EXPECT_NEAR(cosine.learning_rate(25), 0.5 * (1 + std::cos(std::acos(-1.0) / 4)) / 2, 1e-12);
  // A warm-up as long as the training leaves no steps for the decay.
  EXPECT_DOUBLE_EQ(schedule({{"name", "linear"}, {"final", 0.0}, {"warmup", interval(100, "steps")}}).learning_rate(99),
                   0.5);
}

TEST(Schedule, StepFallsAtEveryInterval) {
  const auto s = schedule({{"name", "step"}, {"every", interval(2, "epochs")}, {"factor", 0.1}});
  EXPECT_DOUBLE_EQ(s.learning_rate(39), 0.5);
  EXPECT_DOUBLE_EQ(s.learning_rate(40), 0.05);
  EXPECT_DOUBLE_EQ(s.learning_rate(80), 0.005);
}

TEST(OptimCatalogue, EveryEntryHasHelpAndMakes) {
  ASSERT_EQ(optimizer_catalogue().size(), 4u);
  for (const auto* catalogue : {&optimizer_catalogue(), &schedule_catalogue()}) {
    for (const Entry& entry : *catalogue) {
      EXPECT_FALSE(entry.help.empty()) << entry.name;
      for (const Option& option : entry.options) EXPECT_FALSE(option.help.empty()) << entry.name << "." << option.name;
    }
  }
}

}  // namespace
}  // namespace convoy
