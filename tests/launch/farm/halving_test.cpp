// Successive halving: which trials continue after a rung.
#include "launch/farm/schedule/halving.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<Trial> trials_with(const std::vector<double>& values) {
  std::vector<Trial> trials(values.size());
  for (size_t i = 0; i < values.size(); ++i) trials[i].values = {values[i]};
  return trials;
}

TEST(Halving, AllTrialsReachARungBeforeItIsDecided) {
  std::vector<Trial> trials = trials_with({0.1, 0.2, 0.3, 0.4});
  trials[1].values.clear();
  const HalvingPlan plan = halving_plan(trials, 2, false);
  EXPECT_EQ(plan.rung, 0);
  EXPECT_THAT(plan.running, ElementsAre(1));
  EXPECT_THAT(plan.losers, IsEmpty());
}

TEST(Halving, TheBestContinueInTheirOrder) {
  const HalvingPlan larger = halving_plan(trials_with({0.1, 0.9, 0.3, 0.4, 0.8, 0.2}), 3, false);
  EXPECT_EQ(larger.rung, 1);
  EXPECT_THAT(larger.running, ElementsAre(1, 4));
  EXPECT_FALSE(larger.to_end);
  const HalvingPlan smaller = halving_plan(trials_with({0.1, 0.9, 0.3, 0.4, 0.8, 0.2}), 3, true);
  EXPECT_THAT(smaller.running, ElementsAre(0, 5));
}

TEST(Halving, TiesKeepTheEarlierTrial) {
  EXPECT_THAT(halving_plan(trials_with({0.5, 0.5, 0.5, 0.5}), 2, false).running, ElementsAre(0, 1));
}

TEST(Halving, TheLastTrialTrainsToItsEnd) {
  const HalvingPlan plan = halving_plan(trials_with({0.1, 0.4, 0.3}), 3, false);
  EXPECT_TRUE(plan.to_end);
  EXPECT_THAT(plan.running, ElementsAre(1));
  EXPECT_THAT(plan.losers, ElementsAre(Pair(2, 0), Pair(0, 0)));
}

TEST(Halving, AFailedTrialLosesAndAFinishedOneCompetesWithItsLastValue) {
  std::vector<Trial> trials = trials_with({0.1, 0.4, 0.3, 0.2});
  trials[1] = {{}, true, std::nullopt, -1};  // failed
  trials[3] = {{}, true, 0.9, -1};           // ended before the rung
  const HalvingPlan plan = halving_plan(trials, 2, false);
  EXPECT_THAT(plan.running, ElementsAre(2));
  EXPECT_THAT(plan.losers, ElementsAre(Pair(0, 0), Pair(1, 0)));
}

TEST(Halving, NothingRunsIfAllFailed) {
  std::vector<Trial> trials(3);
  for (Trial& trial : trials) trial.ended = true;
  const HalvingPlan plan = halving_plan(trials, 3, false);
  EXPECT_THAT(plan.running, IsEmpty());
  EXPECT_EQ(plan.losers.size(), 3u);
}

TEST(Halving, AnEarlierDecisionStays) {
  std::vector<Trial> trials = trials_with({0.1, 0.4, 0.3, 0.2});
  trials[1].lost = 0;  // although it is the best now
  trials[0].lost = 0;
  const HalvingPlan plan = halving_plan(trials, 2, false);
  EXPECT_THAT(plan.running, ElementsAre(2, 3));
  EXPECT_THAT(plan.losers, IsEmpty());
}

// Runs the trials one after another and in random groups: the same trials are left.
TEST(Halving, TheOutcomeDoesNotDependOnTheOrderOfEnds) {
  std::vector<size_t> winners, totals;
  for (unsigned order = 0; order < 20; ++order) {
    std::mt19937 random(order);
    std::vector<Trial> trials(81);
    size_t steps = 0;
    for (;;) {
      const HalvingPlan plan = halving_plan(trials, 3, false);
      for (const auto& [trial, rung] : plan.losers) trials[trial].lost = rung;
      if (plan.running.empty()) break;
      std::vector<size_t> some = plan.running;
      std::shuffle(some.begin(), some.end(), random);
      some.resize(1 + random() % some.size());
      for (size_t trial : some) {
        ++steps;
        const double value = std::sin(static_cast<double>(trial * 37 + trials[trial].values.size()));
        if (plan.to_end) {
          trials[trial].ended = true;
          trials[trial].last = value;
          winners.push_back(trial);
        } else {
          trials[trial].values.emplace_back(value);
        }
      }
    }
    totals.push_back(steps);
  }
  EXPECT_EQ(winners.size(), 20u);
  EXPECT_EQ(winners, std::vector<size_t>(20, winners.front()));
  EXPECT_EQ(totals, std::vector<size_t>(20, 81 + 27 + 9 + 3 + 1));
}

TEST(Halving, RungsAreMultiplesOfTheFirst) {
  HalvingOptions options;
  options.eta = 3;
  options.first = {Interval::Unit::epochs, 2};
  EXPECT_EQ(rung_point(options, 2).every, 18);
  EXPECT_EQ(rung_point(options, 2).unit, Interval::Unit::epochs);
  EXPECT_EQ(rung_point(options, 60).unit, Interval::Unit::never);
  EXPECT_EQ(rungs_of(81, 3), 4);
  EXPECT_EQ(rungs_of(2, 3), 1);
  EXPECT_EQ(rungs_of(1000, 2), 9);
}

}  // namespace
}  // namespace convoy
