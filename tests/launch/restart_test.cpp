// Rules of restarts: which failures restart a job, and which would repeat.
#include "launch/job/restart.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "core/control/exit_codes.h"
#include "core/rank_state/summary.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Abort failed_at(int64_t step, Failure kind = Failure::training) { return {kind, 1, step, 0, "node1", "it broke"}; }

TEST(RestartBudget, IsZeroByDefault) {
  RestartBudget restarts({0, 1});
  for (int i = 0; i < 5; ++i) {
    const auto decision = restarts.after(failed_at(20), -1);
    EXPECT_FALSE(decision.again);
    EXPECT_FALSE(decision.no_progress) << "no restart was requested, so the cause itself is the end";
  }
}

TEST(RestartBudget, AllowsTheConfiguredNumber) {
  RestartBudget restarts({2, 0.5});
  EXPECT_TRUE(restarts.after(failed_at(20), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(30), 25).again);
  EXPECT_EQ(restarts.used(), 2);
  const auto last = restarts.after(failed_at(40), 35);
  EXPECT_FALSE(last.again);
  EXPECT_FALSE(last.no_progress) << "it did progress: the cause itself is the end";
}

TEST(RestartBudget, EndsAfterThreeCrashesAtOneStep) {
  RestartBudget restarts({100, 0});
  EXPECT_TRUE(restarts.after(failed_at(20), 10).again);
  EXPECT_TRUE(restarts.after(failed_at(20), 10).again);
  const auto third = restarts.after(failed_at(20), 10);
  EXPECT_FALSE(third.again);
  EXPECT_TRUE(third.no_progress);
}

TEST(RestartBudget, CountsAnEarlierCrashAsNoProgress) {
  RestartBudget restarts({100, 0});
  EXPECT_TRUE(restarts.after(failed_at(20), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(12), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(19), -1).no_progress);
  RestartBudget never_began({100, 0});
  EXPECT_TRUE(never_began.after(failed_at(-1), -1).again);
  EXPECT_TRUE(never_began.after(failed_at(-1), -1).again);
  EXPECT_TRUE(never_began.after(failed_at(-1), -1).no_progress);
}

TEST(RestartBudget, ResetsAfterProgress) {
  RestartBudget restarts({100, 0});
  EXPECT_TRUE(restarts.after(failed_at(20), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(20), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(21), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(21), -1).again);
  EXPECT_TRUE(restarts.after(failed_at(-1), 30).again) << "a newer checkpoint is progress, wherever it failed";
}

TEST(RestartBudget, WaitsLongerWithoutProgress) {
  RestartBudget restarts({100, 2});
  EXPECT_EQ(restarts.after(failed_at(20), -1).again, milliseconds(2000));
  EXPECT_EQ(restarts.after(failed_at(20), -1).again, milliseconds(4000));
  EXPECT_EQ(restarts.after(failed_at(25), -1).again, milliseconds(2000));
  RestartBudget patient({100, 3600});
  EXPECT_EQ(patient.after(failed_at(1), -1).again, milliseconds(600'000));
}

TEST(RestartBudget, RefusesFailuresThatWouldRepeat) {
  for (Failure kind : {Failure::config, Failure::command_line, Failure::corrupt_data, Failure::device_missing,
                       Failure::output, Failure::disagreement, Failure::refused, Failure::stopped}) {
    RestartBudget restarts({100, 0});
    EXPECT_FALSE(restarts.after(failed_at(20, kind), -1).again) << name_of(kind);
  }
  for (Failure kind : {Failure::training, Failure::out_of_memory, Failure::io, Failure::rendezvous, Failure::hang,
                       Failure::internal}) {
    RestartBudget restarts({100, 0});
    EXPECT_TRUE(restarts.after(failed_at(20, kind), -1).again) << name_of(kind);
  }
  Abort killed = failed_at(20, Failure::config);
  killed.signal = 9;
  EXPECT_TRUE(RestartBudget({1, 0}).after(killed, -1).again);
}

class RestartPolicyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "convoy-restart-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  RunFolder folder(int attempt = 0) const {
    RunFolder folder;
    folder.path = path_;
    folder.attempt = attempt;
    return folder;
  }
  JobOutcome outcome(int64_t step) const {
    JobOutcome outcome;
    outcome.cause = failed_at(step);
    outcome.exit_code = exit_code::training;
    return outcome;
  }
  std::string path_;
};

TEST_F(RestartPolicyTest, KeepsEveryFirstCause) {
  RestartPolicy attempts(folder(), {10, 0});
  std::filesystem::create_directories(path_ + "/checkpoints/step-9");
  std::filesystem::create_directories(path_ + "/checkpoints/step-10");
  std::filesystem::create_directories(path_ + "/checkpoints/.step-11.tmp-x");
  EXPECT_EQ(attempts.newest_checkpoint(), 10);
  JobOutcome last;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(attempts.folder().attempt, i);
    last = outcome(20);
    const AttemptEnd ending = attempts.failed(last, true);
    EXPECT_EQ(ending.again.has_value(), i < 2);
    EXPECT_EQ(ending.exit_code, i < 2 ? exit_code::training : exit_code::no_progress);
    if (ending.again) {
      EXPECT_THAT(attempts.note(last, ending), HasSubstr("from the checkpoint after step 10"));
      EXPECT_THAT(attempts.note(last, ending), HasSubstr(str("restart ", i + 1, " of 10")));
    }
  }
  EXPECT_EQ(last.exit_code, exit_code::no_progress);
  EXPECT_THAT(last.cause->message, HasSubstr("reached no step after 20"));
  EXPECT_EQ(last.cause->rank, 1);
  ASSERT_EQ(attempts.ended().size(), 3u);
  EXPECT_EQ(attempts.ended()[1].at("attempt"), 1);
  EXPECT_EQ(attempts.ended()[1].at("failure").at("cause"), "training");
  EXPECT_EQ(attempts.ended()[1].at("failure").at("step"), 20);
  EXPECT_EQ(attempts.ended()[2].at("exit_code"), exit_code::training);
}

TEST_F(RestartPolicyTest, DoesNotRestartRanksThatNeverStarted) {
  RestartPolicy attempts(folder(), {10, 0});
  JobOutcome refused = outcome(-1);
  EXPECT_FALSE(attempts.failed(refused, false).again);
  EXPECT_EQ(attempts.ended().size(), 1u);
}

TEST_F(RestartPolicyTest, AMissingHostUsesOneRestart) {
  RestartPolicy attempts(folder(), {2, 0});
  JobOutcome lost = outcome(20), missing = outcome(-1);
  missing.cause->kind = Failure::rendezvous;
  EXPECT_TRUE(attempts.failed(lost, true).again);
  EXPECT_TRUE(attempts.failed(missing, false).again);
  EXPECT_FALSE(attempts.failed(missing, false).again);
  EXPECT_EQ(attempts.ended().size(), 3u);
}

TEST_F(RestartPolicyTest, CountsRestartsOfEarlierCommands) {
  Json summary = {{"attempt", 1},
                  {"exit_code", 137},
                  {"failure", {{"cause", "internal"}, {"step", 7}}},
                  {"attempts", {{{"attempt", 0}, {"exit_code", 70}, {"failure", nullptr}}}}};
  write_summary(path_, summary);
  std::filesystem::create_directories(path_ + "/checkpoints/step-5");
  RestartPolicy attempts(folder(2), {});
  ASSERT_EQ(attempts.ended().size(), 2u);
  EXPECT_EQ(attempts.ended()[1].at("attempt"), 1);
  EXPECT_EQ(attempts.ended()[1].at("exit_code"), 137);
  EXPECT_EQ(attempts.ended()[1].at("failure").at("step"), 7);
  EXPECT_EQ(attempts.ended()[1].at("checkpoint"), 5);
  EXPECT_FALSE(attempts.ended()[1].contains("paused"));
}

TEST_F(RestartPolicyTest, DistinguishesAPauseFromAStop) {
  write_summary(path_, {{"attempt", 0}, {"paused", true}, {"failure", {{"cause", "stopped"}}}});
  const Json ended = RestartPolicy(folder(1), {}).ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].at("paused"), true);
  EXPECT_TRUE(ended[0].at("checkpoint").is_null());
}

}  // namespace
}  // namespace convoy
