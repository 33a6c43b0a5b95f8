// The trainer keeps its state while the ranks of the job change (launch.min_ranks).
#include "tests/core/trainer_support.h"

namespace convoy {
namespace {

// The supervisor decides after the last step, and before the ranks have noticed that it was the last one.
TEST_F(TrainerTest, KeepsItsStateIfTheRanksChangeAfterTheLastStep) {
  KeptTraining kept;
  kept_ = &kept;
  Counting first;
  first.on_step = [&](int64_t step) {
    if (step == 5) channel_->compare_set(protocol::membership_end, "", protocol::changes);
  };
  try {
    run(first);
    ADD_FAILURE() << "the rank would end, and the others would wait for it";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), Failure::peer_lost) << error.what();
  }
  EXPECT_EQ(kept.steps, 6);
  Counting second;
  const TrainingResult result = run(second);
  EXPECT_TRUE(second.steps.empty());
  EXPECT_EQ(second.total.item<double>(), 2 * 45.0);
  EXPECT_EQ(result.summary["steps"], 6);
  EXPECT_EQ(channel_->compare_set(protocol::membership_end, "", protocol::changes), protocol::complete);
}

// A lost rank 0 wrote the record of the last evaluation, or died before.
TEST_F(TrainerTest, AKeptEvaluationIsRecordedOnce) {
  for (const bool written : {true, false}) {
    start_anew();
    KeptTraining kept;
    kept_ = &kept;
    Counting first;
    first.on_step = [&](int64_t step) {
      if (step == 5) channel_->compare_set(protocol::membership_end, "", protocol::changes);
    };
    EXPECT_THROW(run(first), CommError);
    const std::vector<std::string> before = evaluations();
    ASSERT_EQ(before.size(), 2u);
    if (!written) drop_last_record();
    Counting second;
    run(second);
    EXPECT_EQ(second.evaluated_rows, 0);
    EXPECT_EQ(evaluations(), before) << written;
  }
}

// The lost rank 0 had all values and wrote its record; the others were interrupted.
TEST_F(TrainerTest, ARepeatedEvaluationIsRecordedOnce) {
  KeptTraining kept;
  kept_ = &kept;
  Counting first;
  int evaluated = 0;
  first.on_evaluation = [&] {
    if (++evaluated < 2) return;
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << R"({"kind": "evaluate", "step": 6, "metrics": {}})"
                                                               "\n";
    throw CommError(Failure::peer_lost, 0, "rank 0 is lost");
  };
  EXPECT_THROW(run(first), CommError);
  ASSERT_EQ(evaluations().size(), 2u);
  Counting second;
  run(second);
  EXPECT_EQ(second.evaluated_rows, 3);
  const std::vector<std::string> after = evaluations();
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(Json::parse(after.back())["step"], 6);
  EXPECT_TRUE(Json::parse(after.back())["metrics"].contains("seen")) << after.back();
}

}  // namespace
}  // namespace convoy
