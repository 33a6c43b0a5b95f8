// The parts of a farm that write down and judge: journal, inbox, ends of pipelines, slots of a launcher.
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "launch/exit_codes.h"
#include "launch/farm/claims.h"
#include "launch/farm/inbox.h"
#include "launch/farm/journal.h"
#include "launch/farm/outcome.h"
#include "launch/farm/report.h"
#include "launch/retry.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class FarmFolder : public ::testing::Test {
 protected:
  FarmFolder() {
    char pattern[] = "/tmp/convoy-farm-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~FarmFolder() override { std::filesystem::remove_all(folder_); }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string folder_;
};

TEST_F(FarmFolder, TheJournalCountsStartsAlsoBehindATornLine) {
  EXPECT_THAT(starts_in_journal(folder_), IsEmpty());
  {
    Journal journal(folder_);
    journal.write("a", "queued", 0);
    journal.write("a", "started", 1, {{"pid", 12}});
    journal.write("b", "started", 1);
  }
  std::ofstream(folder_ + "/journal.jsonl", std::ios::app) << R"({"pipeline": "a", "event": "sta)";
  Journal journal(folder_);
  journal.write("a", "started", 2);
  EXPECT_THAT(starts_in_journal(folder_), ElementsAre(Pair("a", 2), Pair("b", 1)));
}

TEST_F(FarmFolder, TheInboxTellsOfWhatArrived) {
  Inbox inbox(folder_);
  EXPECT_THAT(inbox.arrived(), IsEmpty());
  std::ofstream(folder_ + "/inbox/.half.yaml") << "x";
  std::ofstream(folder_ + "/inbox/a.yaml") << "x";
  std::ofstream(folder_ + "/inbox/b.yaml") << "x";
  EXPECT_THAT(inbox.arrived(), ElementsAre(folder_ + "/inbox/a.yaml", folder_ + "/inbox/b.yaml"));
  inbox.take(folder_ + "/inbox/a.yaml");
  EXPECT_EQ(Inbox::refusal(folder_ + "/inbox/b.yaml"), nullptr);
  inbox.refuse(folder_ + "/inbox/b.yaml", Error(Failure::device_missing, "no\nno GPU"));
  EXPECT_THAT(inbox.arrived(), IsEmpty());
  EXPECT_THAT(inbox.taken(), ElementsAre(folder_ + "/inbox/a.yaml.taken"));
  EXPECT_EQ(read("inbox/b.yaml.refused"), "no\nno GPU\nexit code 69\n");
  const auto refusal = Inbox::refusal(folder_ + "/inbox/b.yaml");
  ASSERT_NE(refusal, nullptr);
  EXPECT_EQ(refusal->kind(), Failure::device_missing);
  EXPECT_STREQ(refusal->what(), "no\nno GPU");
}

Json summary_of(const char* status, const char* cause = nullptr) {
  Json summary = {{"status", status}, {"failure", nullptr}};
  if (cause != nullptr) summary["failure"] = {{"cause", cause}, {"message", "it broke"}, {"rank", 1}, {"step", 7}};
  return summary;
}

TEST(FarmVerdict, AnEndWithZeroHasToBeInTheSummaryToo) {
  EXPECT_EQ(judge({0, 0}, StopReason::none, "", summary_of("done")).what, Verdict::What::done);
  EXPECT_EQ(judge({0, 0}, StopReason::preempt, "", summary_of("done")).what, Verdict::What::done) << "it was quicker";
  const Verdict verdict = judge({0, 0}, StopReason::none, "", summary_of("running"));
  EXPECT_EQ(verdict.what, Verdict::What::failed);
  EXPECT_EQ(verdict.exit_code, exit_code::training);
}

TEST(FarmVerdict, WhatThePipelineSaysOfItselfIsTheCause) {
  const Verdict verdict = judge({70, 0}, StopReason::none, "", summary_of("failed", "training"));
  EXPECT_EQ(verdict.cause, "training");
  EXPECT_EQ(verdict.message, "it broke");
  EXPECT_TRUE(verdict.again_helps);
  EXPECT_FALSE(judge({78, 0}, StopReason::none, "", {}).again_helps);
  EXPECT_TRUE(judge({137, 0}, StopReason::none, "", summary_of("failed", "signal")).again_helps);
}

TEST(FarmVerdict, WhatItSaidLastIsTheReasonWhereItCameToNoSummary) {
  const Verdict verdict = judge({78, 0}, StopReason::none, "", {}, "", "a.yaml:3:1: seed: is 'x'");
  EXPECT_EQ(verdict.message, "a.yaml:3:1: seed: is 'x' (its convoy ended with 78; see logs/convoy.log)");
  EXPECT_EQ(judge({78, 0}, StopReason::none, "", {}).message, "its convoy ended with 78; see logs/convoy.log");
  EXPECT_EQ(judge({70, 0}, StopReason::none, "", summary_of("failed", "training"), "", "else").message, "it broke");
}

TEST(FarmVerdict, WhatTheFarmDidIsTheCause) {
  const Verdict memory = judge({0, 9}, StopReason::memory, "took too much", summary_of("running"));
  EXPECT_EQ(memory.cause, "memory");
  EXPECT_EQ(memory.exit_code, exit_code::out_of_memory);
  EXPECT_FALSE(memory.again_helps);
  EXPECT_EQ(judge({143, 0}, StopReason::timeout, "took too long", {}).cause, "timeout");
  EXPECT_EQ(judge({143, 0}, StopReason::preempt, "", {}).what, Verdict::What::preempted);
  EXPECT_EQ(judge({143, 0}, StopReason::stopped, "", {}).what, Verdict::What::stopped);
  EXPECT_EQ(judge({0, SIGTERM}, StopReason::preempt, "", {}).what, Verdict::What::preempted)
      << "before it could listen";
  EXPECT_EQ(judge({0, SIGTERM}, StopReason::none, "", {}).cause, "signal") << "by somebody else";
  EXPECT_EQ(judge({70, 0}, StopReason::preempt, "", summary_of("failed", "training")).cause, "training");
}

TEST(FarmVerdict, ASummaryThatTheKilledCouldNotWriteIsCompleted) {
  const Verdict verdict = judge({0, 9}, StopReason::memory, "took too much", summary_of("running"));
  const Json told = with_end(summary_of("running"), "a", verdict);
  EXPECT_EQ(told["status"], "failed");
  EXPECT_EQ(told["failure"]["cause"], "memory");
  EXPECT_EQ(told["failure"]["message"], "took too much");
  EXPECT_EQ(with_end({}, "a", verdict)["name"], "a");
  const Verdict stopped = judge({0, 9}, StopReason::stopped, "the farm was asked to stop", summary_of("running"));
  EXPECT_EQ(with_end(summary_of("running"), "a", stopped)["status"], "stopped");
  const Json asked = summary_of("stopped", "stopped");
  EXPECT_EQ(with_end(asked, "a", stopped), asked) << "its own words";
  EXPECT_EQ(with_end(asked, "a", verdict)["status"], "failed") << "the farm stopped it for its memory";
  const Json own = summary_of("failed", "training");
  EXPECT_EQ(with_end(own, "a", judge({70, 0}, StopReason::none, "", own)), own);
}

TEST(FarmVerdict, RetriesWaitLongerEachTime) {
  EXPECT_EQ(retry_delay(2, 1), 2);
  EXPECT_EQ(retry_delay(2, 2), 4);
  EXPECT_EQ(retry_delay(2, 3), 8);
  EXPECT_EQ(retry_delay(2, 100), 600);
  EXPECT_EQ(retry_delay(0, 3), 0);
}

std::vector<Member> members(std::vector<Member::State> states) {
  std::vector<Member> all;
  for (Member::State state : states) {
    Member member;
    member.pipeline.name = std::string(1, static_cast<char>('a' + all.size()));
    member.state = state;
    member.verdict.cause = state == Member::State::failed ? "memory" : "";
    all.push_back(member);
  }
  return all;
}

TEST(FarmEnd, NamesWhichFailedAndWhy) {
  using State = Member::State;
  EXPECT_EQ(farm_end(members({State::done, State::done}), 0).exit_code, 0);
  const FarmEnd failed = farm_end(members({State::done, State::failed}), 0);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.message, HasSubstr("1 of 2 pipelines failed: b (memory)"));
  const FarmEnd stopped = farm_end(members({State::done, State::stopped}), 15);
  EXPECT_EQ(stopped.exit_code, 143);
  EXPECT_EQ(farm_end(members({State::done, State::done}), 15).exit_code, 0) << "all had ended already";
}

TEST(FarmSlots, AgentsOfOneHostDivideTheCoresThatTheyShare) {
  Host host;
  host.name = "one";
  for (int id = 0; id < 4; ++id) host.cores.push_back({id, 0, 0, {id}});
  const Yard shared = yard_of(std::vector<Host>{host, host});
  EXPECT_EQ(shared.hosts.size(), 1u);
  EXPECT_THAT(shared.machines.slots[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(shared.machines.slots[1].cores, ElementsAre(2, 3));
  Host first = host, second = host, other = host;
  first.bound = {1};
  second.bound = {3};
  other.name = "two";
  const Yard bound = yard_of(std::vector<Host>{first, second, other});
  EXPECT_EQ(bound.hosts.size(), 2u);
  EXPECT_THAT(bound.machines.slots[0].cores, ElementsAre(1));
  EXPECT_THAT(bound.machines.slots[1].cores, ElementsAre(3));
  EXPECT_EQ(bound.machines.slots[2].host, 1);
  EXPECT_EQ(bound.machines.slots[2].size, 4);
  const Yard crowded = yard_of(std::vector<Host>(8, host));
  EXPECT_THAT(crowded.machines.slots[5].cores, ElementsAre(1)) << "more slots than cores share them";
}

}  // namespace
}  // namespace convoy
