// Random search: sampled values, names of the trials, and mistakes.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "core/config/reader.h"
#include "launch/farm/config/farm.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Node parsed(const std::string& text) { return read_yaml_value(text, {}); }

std::vector<std::string> texts(const Node& trials, const std::string& key) {
  std::vector<std::string> found;
  for (const Node& value : trials.find(key)->items) found.push_back(untyped(value, false).dump());
  return found;
}

std::string mistake(const std::string& search) {
  try {
    sampled_trials(parsed(search));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(Search, RangesAreUniformOnTheirScale) {
  const Node trials =
      sampled_trials(parsed("{random: 4000, over: {lr: {from: 1.0e-5, to: 1.0e-1, scale: log}, x: {from: -1.0, to: "
                            "3.0}, n: {from: 2, to: 5}}}"));
  double low = 0, sum = 0;
  std::map<std::string, int> whole;
  for (const std::string& text : texts(trials, "lr")) {
    const double value = std::stod(text);
    EXPECT_GE(value, 1e-5);
    EXPECT_LE(value, 1e-1);
    low += value < 1e-3;
  }
  for (const std::string& text : texts(trials, "x")) sum += std::stod(text);
  for (const std::string& text : texts(trials, "n")) ++whole[text];
  EXPECT_NEAR(low / 4000, 0.5, 0.04);  // 5 standard deviations
  EXPECT_NEAR(sum / 4000, 1.0, 0.1);
  EXPECT_EQ(whole.size(), 4u);
  for (const auto& [text, count] : whole) EXPECT_NEAR(count, 1000, 140) << text;
}

TEST(Search, IntegersOnALogarithmicScaleReachBothEnds) {
  const Node trials =
      sampled_trials(parsed("{random: 500, over: {n: {from: 1, to: 8, scale: log}, x: {from: 0.0, to: 1.0}}}"));
  const std::vector<std::string> found = texts(trials, "n");
  const std::set<std::string> all(found.begin(), found.end());
  EXPECT_EQ(all, (std::set<std::string>{"1", "2", "3", "4", "5", "6", "7", "8"}));
}

TEST(Search, MoreTrialsAndKeysKeepTheFirstOnes) {
  const std::string over = "over: {lr: {from: 0.001, to: 1.0}, hidden: [[8], [16], [32, 8]]";
  const Node few = sampled_trials(parsed("{random: 5, seed: 7, " + over + "}}"));
  Node many = sampled_trials(parsed("{random: 50, seed: 7, " + over + ", z: {from: 0.0, to: 1.0}}}"));
  for (const char* key : {"lr", "hidden"}) {
    std::vector<std::string> first = texts(many, key);
    first.resize(5);
    EXPECT_EQ(texts(few, key), first);
  }
  const Node other = sampled_trials(parsed("{random: 5, seed: 8, " + over + "}}"));
  EXPECT_NE(texts(few, "lr"), texts(other, "lr"));
}

TEST(Search, TrialsDiffer) {
  const Node trials = sampled_trials(parsed("{random: 4, over: {a: [1, 2], b: [x, y]}}"));
  std::set<std::string> settings;
  for (size_t i = 0; i < 4; ++i) settings.insert(texts(trials, "a")[i] + texts(trials, "b")[i]);
  EXPECT_EQ(settings.size(), 4u);
  EXPECT_THAT(mistake("{random: 5, over: {a: [1, 2], b: [x, y]}}"),
              HasSubstr("only 4 settings that differ were found"));
}

TEST(Search, ValuesStayWithinBoundsOfManyDigits) {
  const Node trials = sampled_trials(parsed("{random: 50, over: {lr: {from: 0.12344, to: 0.12346}}}"));
  for (const std::string& text : texts(trials, "lr")) {
    EXPECT_GE(std::stod(text), 0.12344);
    EXPECT_LE(std::stod(text), 0.12346);
  }
}

TEST(Search, EachTrialIsCombinedWithTheGrid) {
  const Node trials = sampled_trials(parsed("{random: 12, over: {optimizer.lr: {from: 0.1, to: 0.9}}}"));
  const std::vector<GridPoint> points = grid_points(parsed("{seed: [1, 2]}"), "", {}, trials);
  ASSERT_EQ(points.size(), 24u);
  EXPECT_EQ(points[0].name, "trial-00_seed-1");
  EXPECT_EQ(points[23].name, "trial-11_seed-2");
  EXPECT_EQ(points[2].values[0].second, &trials.find("optimizer.lr")->items[1]);
  const std::vector<GridPoint> named = grid_points(parsed("{seed: [1, 2]}"), "t{trial}-s{seed}-{index}", {}, trials);
  EXPECT_EQ(named[3].name, "t01-s2-3");
}

TEST(Search, NamesWhatIsWrong) {
  EXPECT_THAT(mistake("{random: 2}"), HasSubstr("strategy.search.over: must be a map from keys to values"));
  EXPECT_THAT(mistake("{random: 2, over: {a: 1}}"), HasSubstr("search.over.a: must be a list of values, or a range"));
  EXPECT_THAT(mistake("{random: 2, over: {a: []}}"), HasSubstr("is an empty list"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: 1}}}"), HasSubstr("has no `to`"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: 3, to: 2}}}"), HasSubstr("a.to: is 2, must be above `from`, 3"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: x, to: 2}}}"), HasSubstr("a.from: must be a number"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: 0, to: 2, scale: log}}}"), HasSubstr("must be above 0"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: 1, to: 2, scale: ln}}}"), HasSubstr("must be log or linear"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: 1, too: 2}}}"), HasSubstr("did you mean to?"));
  EXPECT_THAT(mistake("{random: 2, over: {a: {from: 1, to: 9223372036854775807}}}"),
              HasSubstr("a.to: is 9223372036854775807; integers of a range have at most 53 bits"));
}

}  // namespace
}  // namespace convoy
