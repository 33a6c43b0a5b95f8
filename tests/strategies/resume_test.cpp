// Position at which a run with other settings than the checkpoint's continues, and its reports.
#include "core/training/resume.h"

#include <gmock/gmock.h>

#include "core/base/error.h"
#include "tests/support/torch/equivalence.h"

namespace convoy {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class ResumeTest : public ::testing::Test {
 protected:
  static RunConfig config(int64_t rows, const std::string& schedule = "constant") {
    testing::Training training;
    training.global_rows = rows;
    training.optimizer = "{name: sgd, lr: 1, schedule: {name: " + schedule + "}}";
    RunConfig config = testing::test_config({}, training);
    config.train.resume = config.resolved["train"]["resume"] = "/runs/a";
    return config;
  }
  static Json trainer(int64_t step, const TrainingLength& length) {
    return {{"step", step},
            {"rows", 0},
            {"train_seconds", 0},
            {"metrics", Json::object()},
            {"global_rows", length.global_rows},
            {"steps_per_epoch", length.steps_per_epoch},
            {"total_steps", length.total_steps}};
  }
  static CheckpointInfo info(int64_t step, const RunConfig& config, const TrainingLength& length) {
    return {"/runs/a/checkpoints/step-" + std::to_string(step), step, trainer(step, length), config.resolved};
  }
};

TEST_F(ResumeTest, TheSameConfigurationContinuesAtTheSameStep) {
  const RunConfig same = config(40, "cosine");
  const TrainingLength length{40, 13, 26, 26};
  const Resumed from = resumed(info(7, same, length), same, length, 500);
  EXPECT_EQ(from.step, 7);
  EXPECT_TRUE(from.same_evaluation);
  EXPECT_EQ(from.notes.size(), 1u);
  EXPECT_EQ(from.rate_note, "");
}

// 500 rows: 13 steps of 40 rows an epoch. Step 20 is at row 280 of the second epoch.
TEST_F(ResumeTest, ANewBatchSizeContinuesAtTheSameRow) {
  const RunConfig before = config(40);
  const CheckpointInfo saved = info(20, before, {40, 13, 26, 26});
  const auto step = [&](int64_t rows, const std::string& words) {
    const int64_t steps = (500 + rows - 1) / rows;
    const Resumed from = resumed(saved, config(rows), {rows, steps, 2 * steps, 2 * steps}, 500);
    EXPECT_THAT(from.notes, Contains(HasSubstr(words)));
    EXPECT_THAT(from.notes, Contains(HasSubstr("train.batch.global: 40 -> " + std::to_string(rows))));
    return from.step;
  };
  EXPECT_EQ(step(20, "row 280 of 500"), 25 + 14);
  EXPECT_EQ(step(80, "row 240 of 500), and the learning rate's schedule continues there; 40 rows are read"), 7 + 3);
  EXPECT_EQ(step(500, "280 rows are read a second time"), 1);
  // At the end of an epoch nothing is read again.
  const Resumed whole = resumed(info(13, before, {40, 13, 26, 26}), config(300), {300, 2, 4, 4}, 500);
  EXPECT_EQ(whole.step, 2);
}

TEST_F(ResumeTest, ReportsAJumpOfTheLearningRateWithItsRemedy) {
  const RunConfig before = config(40, "linear");
  const CheckpointInfo saved = info(13, before, {40, 13, 26, 26});
  const Resumed longer = resumed(saved, before, {40, 13, 52, 52}, 500);
  EXPECT_THAT(longer.rate_note, HasSubstr("from 0.5 to 0.75 at step 13"));
  EXPECT_THAT(longer.rate_note, HasSubstr("the schedule linear depends on the length"));
  EXPECT_THAT(longer.rate_note, HasSubstr("--set optimizer.lr=0.5"));
  // The same share of the training: no jump.
  EXPECT_EQ(resumed(saved, config(20, "linear"), {20, 25, 50, 50}, 500).rate_note, "");
  // Without steps left there is no rate.
  EXPECT_EQ(resumed(saved, before, {40, 13, 13, 13}, 500).rate_note, "");
}

TEST_F(ResumeTest, ReportsChangedHeldOutRowsWithTheRemedy) {
  const TrainingLength length{40, 13, 26, 26};
  const auto with = [&](const Json& seed, const Json& data) {
    RunConfig made = config(40);
    made.resolved["seed"] = seed;
    made.resolved["data"] = data;
    return made;
  };
  const auto from = [&](int64_t old_seed, const Json& data, int64_t seed, const Json& later) {
    return resumed(info(13, with(old_seed, data), length), with(seed, later), length, 500);
  };
  const auto note = [&](const Json& data, const Json& later) { return from(7, data, 7, later).split_note; };
  const auto fraction = [](const char* name, double value) {
    return Json{{"name", name}, {"path", "/none"}, {"evaluate", {{"fraction", value}}}};
  };
  const Json table = fraction("table", 0.1);
  const Resumed drawn = from(7, table, 8, table);
  EXPECT_FALSE(drawn.same_evaluation);
  EXPECT_THAT(drawn.notes, Contains(HasSubstr("best values start again")));
  EXPECT_THAT(drawn.split_note, HasSubstr("data.seed: 7 -> 8"));
  EXPECT_THAT(drawn.split_note, HasSubstr("--set data.seed=7"));
  // The advice works.
  Json kept = table;
  kept["seed"] = 7;
  EXPECT_EQ(from(7, table, 8, kept).split_note, "");
  EXPECT_EQ(note(table, table), "");
  // The fraction.
  for (const char* name : {"table", "images", "text"}) {
    EXPECT_THAT(note(fraction(name, 0.1), fraction(name, 0.2)), HasSubstr("--set data.evaluate.fraction=0.1")) << name;
    EXPECT_EQ(note(fraction(name, 0.2), fraction(name, 0.1)), "") << name << ": these rows were held out before";
    EXPECT_EQ(note(fraction(name, 0.2), fraction(name, 0.0)), "") << name;
  }
  EXPECT_EQ(from(7, fraction("text", 0.1), 8, fraction("text", 0.1)).split_note, "") << "no row is drawn";
  // A separate file, and the held-out interactions.
  Json file = table;
  file["evaluate"] = {{"fraction", 0.1}, {"path", "/data/test.csv"}};
  EXPECT_EQ(from(7, file, 8, file).split_note, "");
  EXPECT_EQ(note(table, file), "");
  EXPECT_THAT(note(file, table), HasSubstr("--set data.evaluate.path=/data/test.csv"));
  const auto holdout = [](const char* rule) { return Json{{"name", "interactions"}, {"holdout", rule}}; };
  EXPECT_NE(from(7, holdout("random"), 8, holdout("random")).split_note, "");
  EXPECT_EQ(from(7, holdout("latest"), 8, holdout("latest")).split_note, "");
  EXPECT_THAT(note(holdout("latest"), holdout("random")), HasSubstr("--set data.holdout=latest"));
  EXPECT_EQ(note(holdout("latest"), holdout("none")), "");
}

TEST_F(ResumeTest, ReportsARandomSplitOfChangedData) {
  const TrainingLength length{40, 13, 26, 26};
  const auto note = [&](const Json& data, int64_t rows, const std::string& fingerprint) {
    RunConfig made = config(40);
    made.resolved["data"] = data;
    CheckpointInfo saved = info(13, made, length);
    saved.fingerprint = "a1";
    saved.data_rows = 100;
    return resumed(saved, made, length, 500, {fingerprint, rows, {}}).split_note;
  };
  const auto fraction = [](const char* name, double value) {
    return Json{{"name", name}, {"path", "/none"}, {"evaluate", {{"fraction", value}}}};
  };
  for (const char* name : {"table", "images"}) {
    EXPECT_THAT(note(fraction(name, 0.1), 120, "b2"), HasSubstr("data: 100 rows -> 120 rows: other rows are held out"));
    EXPECT_THAT(note(fraction(name, 0.1), 120, "b2"), HasSubstr("give the data of the checkpoint; or evaluate on new"));
    EXPECT_THAT(note(fraction(name, 0.1), 100, "b2"), HasSubstr("data: its contents differ: other rows"));
    EXPECT_EQ(note(fraction(name, 0.1), 100, "a1"), "");
    EXPECT_EQ(note(fraction(name, 0.1), 120, ""), "") << "unknown contents";
    EXPECT_EQ(note(fraction(name, 0), 120, "b2"), "") << "nothing is held out";
  }
  EXPECT_EQ(note(fraction("text", 0.1), 120, "b2"), "") << "the end is held out";
  EXPECT_THAT(note({{"name", "interactions"}, {"holdout", "random"}}, 120, "b2"), HasSubstr("100 rows -> 120"));
  EXPECT_EQ(note({{"name", "interactions"}, {"holdout", "latest"}}, 120, "b2"), "");
  Json folds = fraction("table", 0);
  folds["samples"] = {{"how", "folds"}, {"folds", 5}, {"fold", 0}};
  EXPECT_THAT(note(folds, 120, "b2"), HasSubstr("100 rows -> 120"));
}

TEST_F(ResumeTest, ReportsChangedFoldsWithTheRemedy) {
  const TrainingLength length{40, 13, 26, 26};
  const auto note = [&](const Json& was, const Json& is, int member = -1) {
    const auto with = [&](const Json& sections) {
      RunConfig made = config(40);
      made.resolved["data"] = {{"name", "fashion_mnist"}};
      for (const auto& [key, value] : sections.items()) made.resolved[key].update(value);
      return made;
    };
    CheckpointInfo saved = info(13, with(was), length);
    saved.member = member;
    return resumed(saved, with(is), length, 500).split_note;
  };
  const auto fold = [](int64_t folds, int64_t number) {
    return Json{{"data", {{"samples", {{"how", "folds"}, {"folds", folds}, {"fold", number}}}}}};
  };
  const auto how = [](const char* name) {
    return Json{{"data", {{"samples", {{"how", name}, {"folds", 5}, {"fold", 0}}}}}};
  };
  EXPECT_EQ(note(fold(5, 1), fold(5, 1)), "");
  EXPECT_THAT(note(fold(5, 1), fold(5, 2)), HasSubstr("data.samples.fold: 1 -> 2: other rows are held out"));
  EXPECT_THAT(note(fold(5, 1), fold(5, 2)), HasSubstr("add --set data.samples.fold=1"));
  EXPECT_THAT(note(fold(5, 1), fold(4, 1)), HasSubstr("add --set data.samples.folds=5"));
  EXPECT_THAT(note(how("all"), fold(5, 0)), HasSubstr("add --set data.samples.how=all"));
  EXPECT_THAT(note(how("subset"), fold(5, 0)), HasSubstr("add --set data.samples.how=subset"));
  EXPECT_EQ(note(fold(5, 1), how("all")), "") << "nothing is held out";
  // Members of an ensemble: each holds out the fold of its number.
  const auto members = [](const Json& samples) { return Json{{"strategy", {{"samples", samples}}}}; };
  const Json five = members({{"folds", 5}}), four = members({{"folds", 4}});
  EXPECT_EQ(note(five, five), "");
  EXPECT_THAT(note(five, four), HasSubstr("add --set 'strategy.samples={\"folds\":5}'"));
  EXPECT_THAT(note(members("bootstrap"), five), HasSubstr("add --set strategy.samples=bootstrap"));
  EXPECT_EQ(note(five, members("all")), "");
  EXPECT_EQ(note(five, fold(5, 3), 3), "");
  EXPECT_THAT(note(five, fold(5, 2), 3), HasSubstr("add --set data.samples.fold=3"));
  EXPECT_EQ(note(fold(5, 0), five), "") << "models of a farm, one for each fold";
  EXPECT_NE(note(how("all"), five), "");
}

TEST_F(ResumeTest, ReadsOlderCheckpoints) {
  const RunConfig before = config(40);
  CheckpointInfo saved = info(20, before, {40, 13, 26, 26});
  for (const char* later : {"steps_per_epoch", "total_steps"}) saved.trainer.erase(later);
  EXPECT_EQ(resumed(saved, config(20), {20, 25, 50, 50}, 500).step, 39);
  saved.config = {{"name", "unreadable"}};
  EXPECT_EQ(resumed(saved, before, {40, 13, 26, 26}, 500).step, 20);
}

TEST_F(ResumeTest, RefusesImpossiblePositionsAsCorrupt) {
  const RunConfig before = config(40);
  CheckpointInfo saved = info(20, before, {40, 13, 26, 26});
  saved.trainer = Json::object();
  EXPECT_THROW(resumed(saved, before, {40, 13, 26, 26}, 500), Error);
}

}  // namespace
}  // namespace convoy
