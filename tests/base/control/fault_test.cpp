// Valid texts of --inject, and the errors of invalid ones.
#include "core/control/fault.h"

#include <gmock/gmock.h>

#include "core/base/error.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using Kind = Fault::Kind;
using Detail = Fault::Detail;
using Point = InjectPoint;

std::string refusal(const std::string& text, int ranks = 0) {
  try {
    faults_from_texts({text}, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::command_line);
    EXPECT_THAT(error.what(), HasSubstr("--inject "));
    return error.what();
  }
  return "taken";
}

TEST(Fault, ParsesTheDocumentedForms) {
  const Fault kill = fault_from_text("kill:rank=2@step=50");
  EXPECT_EQ(kill.kind, Kind::kill);
  EXPECT_EQ(kill.rank, 2);
  EXPECT_EQ(kill.point, Point::step);
  EXPECT_EQ(kill.number, 50);
  EXPECT_EQ(kill.attempt, 0);
  EXPECT_EQ(kill.block, -1);
  EXPECT_EQ(kill.text, "kill:rank=2@step=50");

  const Fault sleep = fault_from_text("sleep:5s");
  EXPECT_EQ(sleep.seconds, 5);
  EXPECT_EQ(sleep.rank, 0);
  EXPECT_EQ(sleep.point, Point::step);
  EXPECT_EQ(sleep.number, 1);

  EXPECT_EQ(fault_from_text("stop").kind, Kind::stop);
  EXPECT_EQ(fault_from_text("throw:block=1@step=0").block, 1);
  EXPECT_EQ(fault_from_text("exit").code, 0);
  EXPECT_EQ(fault_from_text("exit:3").code, 3);
  EXPECT_EQ(fault_from_text("segv@collective=7").point, Point::collective);
  EXPECT_EQ(fault_from_text("nan@epoch=2").point, Point::epoch);
  EXPECT_EQ(fault_from_text("mismatch").detail, Detail::shape);
  EXPECT_EQ(fault_from_text("mismatch:operation").detail, Detail::operation);
  EXPECT_EQ(fault_from_text("mismatch:parameters:rank=1").point, Point::join);
  EXPECT_EQ(fault_from_text("drop-heartbeat").kind, Kind::drop_heartbeat);
  EXPECT_EQ(fault_from_text("cut-network").seconds, 0);
  EXPECT_EQ(fault_from_text("cut-network:2s@step=5").seconds, 2);
  EXPECT_EQ(fault_from_text("kill@join").point, Point::join);
  EXPECT_EQ(fault_from_text("kill@save").number, 1);
  const Fault full = fault_from_text("enospc:fsync@save=2:always");
  EXPECT_EQ(full.kind, Kind::enospc);
  EXPECT_EQ(full.detail, Detail::fsync);
  EXPECT_EQ(full.point, Point::save);
  EXPECT_EQ(full.number, 2);
  EXPECT_EQ(full.attempt, Fault::all_attempts);
  EXPECT_EQ(fault_from_text("enospc").point, Point::save);
  EXPECT_EQ(fault_from_text("kill@step=5:rank=last").rank, Fault::last_rank);
}

TEST(Fault, NamesTheNearestWord) {
  EXPECT_THAT(refusal("kil:rank=2@step=50"), HasSubstr("unknown fault 'kil'; did you mean kill?"));
  EXPECT_THAT(refusal("drop_heartbeat"), HasSubstr("did you mean drop-heartbeat?"));
  EXPECT_THAT(refusal("kill@stp=5"), HasSubstr("unknown point 'stp'; did you mean step?"));
  EXPECT_THAT(refusal("kill:rnk=2"), HasSubstr("did you mean rank=N?"));
  EXPECT_THAT(refusal("mismatch:shapes"), HasSubstr("did you mean shape?"));
  EXPECT_THAT(refusal("kill:allways"), HasSubstr("did you mean always?"));
  EXPECT_THAT(refusal("enospc:flush"),
              HasSubstr("one of rank=N, rank=last, rank=all, attempt=N, always, write, fsync"));
}

TEST(Fault, RefusesMeaninglessFaults) {
  const std::vector<std::string> wrong{"",
                                       ":",
                                       "kill:",
                                       "kill@",
                                       "kill::rank=1",
                                       "kill:rank=",
                                       "kill:rank=-1",
                                       "kill:rank=1.5",
                                       "kill:rank=01",
                                       "kill:rank",
                                       "kill:rank=1:rank=2",
                                       "kill@step=1@step=2",
                                       "kill@step",
                                       "kill@step=x",
                                       "kill@join=1",
                                       "kill@epoch=0",
                                       "kill@save=0",
                                       "kill:5s",
                                       "kill:always:attempt=1",
                                       "sleep",
                                       "sleep:5s:6s",
                                       "sleep:-5s",
                                       "sleep:2days",
                                       "sleep:48h",
                                       "sleep:1s@collective=3",
                                       "throw@collective=3",
                                       "exit:256",
                                       "nan@save",
                                       "nan@join",
                                       "mismatch@join",
                                       "mismatch:parameters@step=1",
                                       "mismatch:block=0",
                                       "enospc@step=1",
                                       "kill:block=0@save",
                                       "orphan@collective=1",
                                       "kill@step=99999999999999999999",
                                       "kill rank=2"};
  for (const std::string& text : wrong) EXPECT_NE(refusal(text), "taken") << text;
}

TEST(Fault, ChecksRanksAgainstTheJob) {
  EXPECT_EQ(refusal("kill:rank=1", 2), "taken");
  EXPECT_EQ(refusal("kill:rank=last", 2), "taken");
  EXPECT_THAT(refusal("kill:rank=2", 2), HasSubstr("there is no rank 2: the job has 2 ranks, 0 to 1"));
  EXPECT_THAT(refusal("kill:rank=2", 1), HasSubstr("1 rank, 0"));
}

TEST(Fault, AProgramHasNoBlocks) {
  const auto refused = [](const std::string& text) {
    try {
      check_faults_of_program({fault_from_text(text)});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::command_line);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("nan:rank=1@step=5"), HasSubstr("--inject nan:rank=1@step=5: happens in a block"));
  EXPECT_THAT(refused("nan"), HasSubstr("use one of kill, stop, throw"));
  EXPECT_NE(refused("mismatch:parameters"), "");
  EXPECT_NE(refused("throw:block=0@step=2"), "");
  for (const char* text : {"kill", "mismatch:dtype", "throw@evaluate", "enospc@save=2", "orphan", "loop@epoch=2"})
    EXPECT_EQ(refused(text), "") << text;
}

TEST(Fault, AppliesToOneRankInTheFirstAttempt) {
  const Fault first = fault_from_text("kill:rank=1");
  EXPECT_TRUE(first.concerns(1, 4, 0));
  EXPECT_FALSE(first.concerns(0, 4, 0));
  EXPECT_FALSE(first.concerns(1, 4, 1)) << "a restart recovers";
  EXPECT_TRUE(fault_from_text("kill:rank=last").concerns(3, 4, 0));
  EXPECT_TRUE(fault_from_text("kill:rank=all").concerns(2, 4, 0));
  EXPECT_TRUE(fault_from_text("kill:rank=1:always").concerns(1, 4, 5));
  EXPECT_TRUE(fault_from_text("kill:attempt=2").concerns(0, 4, 2));
  EXPECT_FALSE(fault_from_text("kill:attempt=2").concerns(0, 4, 0));
}

}  // namespace
}  // namespace convoy
