// Diagnosis of a stall, and its report.
#include "launch/diagnose/stall_report.h"

#include <gmock/gmock.h>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t usual = 7;

// A rank whose process answers. `calls`: in group world.
RankStatus place(int rank, const std::string& phase, const std::string& collective, int64_t calls, double age = 5,
                 uint64_t hash = usual) {
  RankStatus made;
  made.known = made.answered = true;
  made.host = rank < 2 ? "node1" : "node2";
  made.report.rank = rank;
  made.report.age = age;
  made.report.position.phase = phase;
  made.report.position.collective = collective;
  made.report.position.step = 812;
  made.report.calls.push_back({"world", calls, hash, str("all_reduce 'bucket 2' float32[", hash, "] sum")});
  return made;
}
RankStatus waiting(int rank, int64_t calls, double age = 5) {
  return place(rank, "forward/backward", "all_reduce bucket 2", calls, age);
}
RankStatus without_answer(RankStatus place) {
  place.answered = false;
  place.seconds_since_report = 3;
  return place;
}

// Rank 0 of `ranks` waits for call 9 of the world.
Stall stall_of(int ranks) {
  Stall stall;
  stall.rank = 0;
  stall.group = "world";
  stall.number = 9;
  stall.call = "all_reduce 'bucket 2' float32[7] sum";
  for (int rank = 0; rank < ranks; ++rank) stall.members.push_back(rank);
  stall.seconds = stall.limit = 5;
  return stall;
}

TEST(StallDiagnosis, NamesTheMissingRankAndNoWaitingOne) {
  const StallDiagnosis diagnosis =
      diagnose(stall_of(4), {waiting(0, 9), waiting(1, 9), place(2, "loader", "", 8), waiting(3, 9)});
  EXPECT_EQ(diagnosis.kind, Failure::hang);
  EXPECT_THAT(diagnosis.ranks, ElementsAre(2));
  EXPECT_EQ(diagnosis.message, "rank 2 has not reached all-reduce bucket 2 for 5 s; it is in loader, step 812");
}

TEST(StallDiagnosis, NamesAllMissingRanks) {
  const StallDiagnosis diagnosis =
      diagnose(stall_of(4), {waiting(0, 9), place(1, "loader", "", 8), place(2, "loader", "", 8), waiting(3, 9)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(1, 2));
  EXPECT_THAT(diagnosis.message, HasSubstr("ranks 1-2 have not reached all-reduce bucket 2"));
}

TEST(StallDiagnosis, FollowsAMissingRankThatItselfWaits) {
  // Rank 1 is missing because it waits for rank 2 in another group, without rank 0.
  Stall stall = stall_of(2);
  RankStatus between = place(1, "forward/backward", "receive activations", 8);
  const StallDiagnosis diagnosis = diagnose(stall, {waiting(0, 9), between, place(2, "forward/backward", "", 3, 7)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(2));
  EXPECT_THAT(diagnosis.message, HasSubstr("rank 2 keeps the others waiting"));
  EXPECT_THAT(diagnosis.message, HasSubstr("rank 0 has waited 5 s in all-reduce bucket 2"));
}

TEST(StallDiagnosis, NamesARankThatDoesNotAnswerInsideTheCollective) {
  const StallDiagnosis diagnosis = diagnose(stall_of(3), {waiting(0, 9), without_answer(waiting(1, 9)), waiting(2, 9)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(1));
}

TEST(StallDiagnosis, ASlowAnswerDoesNotHideAMissingRank) {
  const StallDiagnosis diagnosis =
      diagnose(stall_of(3), {waiting(0, 9), without_answer(waiting(1, 9)), place(2, "loader", "", 8)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(2));
}

TEST(StallDiagnosis, DifferentCallsWithOneNumberAreAMismatch) {
  const StallDiagnosis diagnosis =
      diagnose(stall_of(2), {waiting(0, 9), place(1, "forward/backward", "all_reduce x", 9, 5, 8)});
  EXPECT_EQ(diagnosis.kind, Failure::disagreement);
  EXPECT_THAT(diagnosis.ranks, IsEmpty()) << "of two, neither stands alone";
  EXPECT_THAT(diagnosis.message, HasSubstr("call 9 of group world"));
  EXPECT_THAT(diagnosis.message, HasSubstr("rank 0: all_reduce 'bucket 2' float32[7] sum"));
  EXPECT_THAT(diagnosis.message, HasSubstr("rank 1: all_reduce 'bucket 2' float32[8] sum"));
}

TEST(StallDiagnosis, NamesTheRankThatDiffersFromAllOthers) {
  const StallDiagnosis diagnosis =
      diagnose(stall_of(3), {waiting(0, 9), place(1, "forward/backward", "all_reduce x", 9, 5, 8), waiting(2, 9)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(1));
  EXPECT_THAT(diagnosis.message, HasSubstr("ranks 0,2: all_reduce"));
}

TEST(StallDiagnosis, FindsAMismatchAlthoughOneRankContinued) {
  RankStatus ahead = waiting(0, 9);
  ahead.report.calls.push_back({"world", 10, 3, "barrier"});
  const StallDiagnosis diagnosis =
      diagnose(stall_of(2), {ahead, place(1, "forward/backward", "all_reduce x", 9, 5, 8)});
  EXPECT_EQ(diagnosis.kind, Failure::disagreement);
  EXPECT_THAT(diagnosis.message, HasSubstr("call 9 of group world"));
}

TEST(StallDiagnosis, NamesNoRankIfAllHaveCalled) {
  const StallDiagnosis diagnosis = diagnose(stall_of(2), {waiting(0, 9), waiting(1, 9)});
  EXPECT_EQ(diagnosis.kind, Failure::hang);
  EXPECT_THAT(diagnosis.ranks, IsEmpty());
  EXPECT_THAT(diagnosis.message, HasSubstr("all ranks have called"));
}

TEST(StallDiagnosis, OnlyThePeerOfASendCanBeMissing) {
  Stall stall = stall_of(2);
  stall.number = 0;
  stall.call = "receive 'activations' float32[8,16]";
  const StallDiagnosis diagnosis =
      diagnose(stall, {waiting(0, 9), place(1, "loader", "", 9), place(2, "loader", "", 9)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(1));
  EXPECT_THAT(diagnosis.message, HasSubstr("has not reached receive activations"));
}

TEST(StallDiagnosis, NamesTheRankOfAStepThatDoesNotEnd) {
  Stall stall;
  stall.kind = Stall::Kind::step;
  stall.rank = 0;
  stall.limit = 4;
  const StallDiagnosis diagnosis = diagnose(stall, {waiting(0, 9), place(1, "forward/backward", "", 8)});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(1));
  EXPECT_EQ(diagnosis.message,
            "rank 1 has been in forward/backward, step 812 for 5 s, longer than 4 s (launch.step_timeout)");
}

TEST(StallDiagnosis, ALostHeartbeatNamesAStoppedProcess) {
  Stall stall;
  stall.kind = Stall::Kind::heartbeat;
  stall.rank = 1;
  stall.message = "rank 1 has sent no heartbeat for 5 s";
  RankStatus stopped = without_answer(place(1, "optimizer", "", 8));
  stopped.suspended = true;
  const StallDiagnosis diagnosis = diagnose(stall, {waiting(0, 9), stopped});
  EXPECT_THAT(diagnosis.ranks, ElementsAre(1));
  EXPECT_THAT(diagnosis.message, HasSubstr("no heartbeat for 5 s; it was in optimizer, step 812"));
  EXPECT_THAT(diagnosis.message, HasSubstr("stopped by a signal or a debugger"));
}

TEST(StallReport, EqualPositionsShareALineAndTheStalledRankIsFirst) {
  const std::vector<RankStatus> places = {waiting(0, 9, 60.5), waiting(1, 9, 61), waiting(2, 9),
                                          place(3, "loader", "", 8, 61)};
  const std::string table = stall_report(places, diagnose(stall_of(4), places), {});
  EXPECT_EQ(table,
            "where the ranks are:\n"
            "  rank  host   where                           for\n"
            "  3     node2  loader, step 812               61 s  <- here\n"
            "  0-1   node1  all-reduce bucket 2, step 812  61 s\n"
            "  2     node2  all-reduce bucket 2, step 812   5 s");
}

TEST(StallReport, NamesOldReportsAndMissingStacks) {
  const std::vector<RankStatus> places = {waiting(0, 9), without_answer(place(1, "loader", "", 8))};
  ThreadStack stack;
  stack.rank = stack.process = 0;
  stack.frames = {"/nowhere/libx.so+0x10"};
  const std::string table = stall_report(places, diagnose(stall_of(2), places), {stack});
  EXPECT_THAT(table, HasSubstr("does not answer; last report 3 s ago"));
  EXPECT_THAT(table, HasSubstr("rank 1: no stack, since its process does not answer"));
  EXPECT_THAT(table, HasSubstr("rank 0:\n      ? (libx.so)"));
}

TEST(StallReport, TheSummaryHasEveryRank) {
  const std::vector<RankStatus> places = {waiting(0, 9), place(1, "loader", "", 8)};
  const Json json = stall_json(places, diagnose(stall_of(2), places), {});
  ASSERT_EQ(json.at("ranks").size(), 2u);
  EXPECT_EQ(json["ranks"][0]["collective"], "all_reduce bucket 2");
  EXPECT_EQ(json["ranks"][0]["to_blame"], false);
  EXPECT_EQ(json["ranks"][1]["phase"], "loader");
  EXPECT_EQ(json["ranks"][1]["step"], 812);
  EXPECT_TRUE(json["ranks"][1]["collective"].is_null());
  EXPECT_EQ(json["ranks"][1]["to_blame"], true);
}

TEST(StallReport, ShortensCalls) {
  EXPECT_EQ(short_call("all_reduce 'bucket 2' float32[4] sum"), "all-reduce bucket 2");
  EXPECT_EQ(short_call("barrier"), "barrier");
  EXPECT_EQ(rank_list({3}), "rank 3");
  EXPECT_EQ(rank_list({0, 1, 2, 5}), "ranks 0-2,5");
}

}  // namespace
}  // namespace convoy
