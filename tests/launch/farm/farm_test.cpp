// Journal, inbox, attempt results, and slots of a launcher.
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/control/exit_codes.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/report/report.h"
#include "launch/farm/run/farm.h"
#include "launch/job/restart.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST_F(FarmFolder, TheJournalCountsStartsAfterAnIncompleteLine) {
  EXPECT_THAT(read_journal(folder_), IsEmpty());
  {
    Journal journal(folder_);
    journal.write("a", "queued", 0);
    journal.write("a", "started", 1, {{"pid", 12}});
    journal.write("b", "started", 1);
  }
  std::ofstream(folder_ + "/journal.jsonl", std::ios::app) << R"({"pipeline": "a", "event": "sta)";
  Journal journal(folder_);
  journal.write("a", "started", 2);
  std::map<std::string, JournalRecord> records = read_journal(folder_);
  EXPECT_EQ(records.size(), 2u);
  EXPECT_EQ(records["a"].starts, 2);
  EXPECT_EQ(records["b"].starts, 1);
}

TEST_F(FarmFolder, TheJournalKeepsRungsAndCancelledPipelines) {
  {
    Journal journal(folder_);
    journal.write("a", "paused", 1, {{"rung", 0}, {"value", 0.5}});
    journal.write("a", "paused", 2, {{"rung", 1}, {"value", nullptr}});
    journal.write("a", "lost", 2, {{"rung", 1}});
    journal.write("b", "cancelled", 1, {{"by_request", true}});
    journal.write("c", "cancelled", 1);  // the farm stopped
    journal.write("d", "cancelled", 1, {{"by_request", true}});
    journal.write("d", "started", 2);
    journal.write("e", "paused", 1, {{"rung", -7}, {"value", "x"}});
    journal.write("e", "paused", 1, {{"rung", 1000000000}});
  }
  std::map<std::string, JournalRecord> records = read_journal(folder_);
  EXPECT_THAT(records["a"].rung_values, ElementsAre(0.5, std::nullopt));
  EXPECT_EQ(records["a"].lost_at, 1);
  EXPECT_EQ(records["b"].lost_at, -1);
  EXPECT_TRUE(records["b"].cancelled);
  EXPECT_FALSE(records["c"].cancelled);
  EXPECT_FALSE(records["d"].cancelled);
  EXPECT_THAT(records["e"].rung_values, IsEmpty());
}

TEST_F(FarmFolder, TheInboxListsArrivedFiles) {
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

TEST(FarmAttemptResult, ExitCodeZeroNeedsADoneSummary) {
  EXPECT_EQ(classify({0, 0}, StopReason::none, "", summary_of("done")).outcome, AttemptResult::Outcome::done);
  EXPECT_EQ(classify({0, 0}, StopReason::preempt, "", summary_of("done")).outcome, AttemptResult::Outcome::done)
      << "it was quicker";
  const AttemptResult result = classify({0, 0}, StopReason::none, "", summary_of("running"));
  EXPECT_EQ(result.outcome, AttemptResult::Outcome::failed);
  EXPECT_EQ(result.exit_code, exit_code::training);
}

TEST(FarmAttemptResult, TakesTheCauseFromTheSummary) {
  const AttemptResult result = classify({70, 0}, StopReason::none, "", summary_of("failed", "training"));
  EXPECT_EQ(result.cause, "training");
  EXPECT_EQ(result.message, "it broke");
  EXPECT_TRUE(result.retryable);
  EXPECT_FALSE(classify({78, 0}, StopReason::none, "", {}).retryable);
  EXPECT_TRUE(classify({137, 0}, StopReason::none, "", summary_of("failed", "signal")).retryable);
}

TEST(FarmAttemptResult, TakesTheLastMessageWithoutASummary) {
  const AttemptResult result = classify({78, 0}, StopReason::none, "", {}, "", "a.yaml:3:1: seed: is 'x'");
  EXPECT_EQ(result.message, "a.yaml:3:1: seed: is 'x' (its convoy ended with 78; see logs/convoy.log)");
  EXPECT_EQ(classify({78, 0}, StopReason::none, "", {}).message, "its convoy ended with 78; see logs/convoy.log");
  EXPECT_EQ(classify({70, 0}, StopReason::none, "", summary_of("failed", "training"), "", "else").message, "it broke");
}

TEST(FarmAttemptResult, TakesTheCauseFromTheFarm) {
  const AttemptResult memory = classify({0, 9}, StopReason::memory, "took too much", summary_of("running"));
  EXPECT_EQ(memory.cause, "memory");
  EXPECT_EQ(memory.exit_code, exit_code::out_of_memory);
  EXPECT_FALSE(memory.retryable);
  EXPECT_EQ(classify({143, 0}, StopReason::timeout, "took too long", {}).cause, "timeout");
  EXPECT_EQ(classify({143, 0}, StopReason::preempt, "", {}).outcome, AttemptResult::Outcome::preempted);
  EXPECT_EQ(classify({143, 0}, StopReason::stopped, "", {}).outcome, AttemptResult::Outcome::stopped);
  EXPECT_EQ(classify({0, SIGTERM}, StopReason::preempt, "", {}).outcome, AttemptResult::Outcome::preempted)
      << "before it could listen";
  EXPECT_EQ(classify({0, SIGTERM}, StopReason::none, "", {}).cause, "signal") << "by another process";
  EXPECT_EQ(classify({70, 0}, StopReason::preempt, "", summary_of("failed", "training")).cause, "training");
}

TEST(FarmAttemptResult, CompletesTheSummaryOfAKilledRun) {
  const AttemptResult result = classify({0, 9}, StopReason::memory, "took too much", summary_of("running"));
  const Json completed = with_failure(summary_of("running"), "a", result);
  EXPECT_EQ(completed["status"], "failed");
  EXPECT_EQ(completed["failure"]["cause"], "memory");
  EXPECT_EQ(completed["failure"]["message"], "took too much");
  EXPECT_EQ(with_failure({}, "a", result)["name"], "a");
  const AttemptResult stopped =
      classify({0, 9}, StopReason::stopped, "the farm was asked to stop", summary_of("running"));
  EXPECT_EQ(with_failure(summary_of("running"), "a", stopped)["status"], "stopped");
  const Json stop_reason = summary_of("stopped", "stopped");
  EXPECT_EQ(with_failure(stop_reason, "a", stopped), stop_reason) << "its own words";
  EXPECT_EQ(with_failure(stop_reason, "a", result)["status"], "failed") << "the farm stopped it for its memory";
  const Json own = summary_of("failed", "training");
  EXPECT_EQ(with_failure(own, "a", classify({70, 0}, StopReason::none, "", own)), own);
}

TEST(FarmAttemptResult, RetryDelaysGrow) {
  EXPECT_EQ(retry_delay(2, 1), 2);
  EXPECT_EQ(retry_delay(2, 2), 4);
  EXPECT_EQ(retry_delay(2, 3), 8);
  EXPECT_EQ(retry_delay(2, 100), 600);
  EXPECT_EQ(retry_delay(0, 3), 0);
}

std::vector<PipelineState> pipelines(std::vector<PipelineState::Status> states) {
  std::vector<PipelineState> all;
  for (PipelineState::Status status : states) {
    PipelineState entry;
    entry.pipeline.name = std::string(1, static_cast<char>('a' + all.size()));
    entry.status = status;
    entry.result.cause = status == PipelineState::Status::failed ? "memory" : "";
    all.push_back(entry);
  }
  return all;
}

TEST(FarmEnd, NamesFailedPipelinesWithTheirCauses) {
  using State = PipelineState::Status;
  EXPECT_EQ(farm_end(pipelines({State::done, State::done}), 0).exit_code, 0);
  const FarmEnd failed = farm_end(pipelines({State::done, State::failed}), 0);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.message, HasSubstr("1 of 2 pipelines failed: b (memory)"));
  const FarmEnd stopped = farm_end(pipelines({State::done, State::stopped}), 15);
  EXPECT_EQ(stopped.exit_code, 143);
  EXPECT_EQ(farm_end(pipelines({State::done, State::done}), 15).exit_code, 0) << "all had ended already";
  EXPECT_EQ(farm_end(pipelines({State::done, State::lost}), 0).exit_code, 0);
  EXPECT_EQ(farm_end(pipelines({State::lost, State::lost}), 0).exit_code, 1);
}

TEST(FarmSlots, AgentsOfOneHostDivideSharedCores) {
  Host host;
  host.name = "one";
  for (int id = 0; id < 4; ++id) host.cores.push_back({id, 0, 0, {id}});
  const Cluster shared = cluster_of(std::vector<Host>{host, host});
  EXPECT_EQ(shared.hosts.size(), 1u);
  EXPECT_THAT(shared.inventory.slots[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(shared.inventory.slots[1].cores, ElementsAre(2, 3));
  Host first = host, second = host, other = host;
  first.bound = {1};
  second.bound = {3};
  other.name = "two";
  const Cluster bound = cluster_of(std::vector<Host>{first, second, other});
  EXPECT_EQ(bound.hosts.size(), 2u);
  EXPECT_THAT(bound.inventory.slots[0].cores, ElementsAre(1));
  EXPECT_THAT(bound.inventory.slots[1].cores, ElementsAre(3));
  EXPECT_EQ(bound.inventory.slots[2].host, 1);
  EXPECT_EQ(bound.inventory.slots[2].size, 4);
  const Cluster crowded = cluster_of(std::vector<Host>(8, host));
  EXPECT_THAT(crowded.inventory.slots[5].cores, ElementsAre(1)) << "more slots than cores share them";
}

}  // namespace
}  // namespace convoy
