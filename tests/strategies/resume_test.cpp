// Where a run continues that differs from the one that made the checkpoint, and what it reports.
#include "core/resume.h"

#include <gmock/gmock.h>

#include "core/error.h"
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
TEST_F(ResumeTest, AnotherBatchSizeContinuesAtTheSameRow) {
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

TEST_F(ResumeTest, AJumpOfTheRateIsReportedWithWhatAvoidsIt) {
  const RunConfig before = config(40, "linear");
  const CheckpointInfo saved = info(13, before, {40, 13, 26, 26});
  const Resumed longer = resumed(saved, before, {40, 13, 52, 52}, 500);
  EXPECT_THAT(longer.rate_note, HasSubstr("from 0.5 to 0.75 at step 13"));
  EXPECT_THAT(longer.rate_note, HasSubstr("the schedule linear depends on the length"));
  EXPECT_THAT(longer.rate_note, HasSubstr("--set optimizer.lr=0.5"));
  // The same share of the training: no jump.
  EXPECT_EQ(resumed(saved, config(20, "linear"), {20, 25, 50, 50}, 500).rate_note, "");
  // With nothing left there is no rate.
  EXPECT_EQ(resumed(saved, before, {40, 13, 13, 13}, 500).rate_note, "");
}

TEST_F(ResumeTest, OlderCheckpointsSaidLess) {
  const RunConfig before = config(40);
  CheckpointInfo saved = info(20, before, {40, 13, 26, 26});
  for (const char* later : {"steps_per_epoch", "total_steps"}) saved.trainer.erase(later);
  EXPECT_EQ(resumed(saved, config(20), {20, 25, 50, 50}, 500).step, 39);
  saved.config = {{"name", "unreadable"}};
  EXPECT_EQ(resumed(saved, before, {40, 13, 26, 26}, 500).step, 20);
}

TEST_F(ResumeTest, WhatCannotBeContinuedIsCorrupt) {
  const RunConfig before = config(40);
  CheckpointInfo saved = info(20, before, {40, 13, 26, 26});
  saved.trainer = Json::object();
  EXPECT_THROW(resumed(saved, before, {40, 13, 26, 26}, 500), Error);
}

}  // namespace
}  // namespace convoy
