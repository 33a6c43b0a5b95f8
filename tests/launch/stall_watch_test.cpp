// The watch over a real channel; ranks are clients that answer as rank processes do, or do not.
#include "launch/diagnose/stall_watch.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>

#include "core/base/text.h"
#include "core/control/channel.h"
#include "core/rank_state/position.h"
#include "core/rank_state/state_file.h"
#include "tests/support/rank_answers.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StallWatchTest : public ::testing::Test {
 protected:
  StallWatchTest() {
    std::string pattern = ::testing::TempDir() + "convoy-stall-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::filesystem::create_directories(folder_ + "/logs");
    ChannelServerEvents events;
    events.on_post = [this](int, const std::string& topic, const Json& body) {
      loop_.post([this, topic, body] { EXPECT_TRUE(watch_->posted(topic, body)) << topic; });
    };
    server_ = serve_channel({}, events);
    channel_ = connect_channel(server_->address(), -9, "convoy", milliseconds(5000));
  }
  ~StallWatchTest() override {
    for (auto& rank : ranks_) rank.reset();
    watch_.reset();
    channel_.reset();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void begin(int ranks, double step_timeout = 0, double rendezvous = 300) {
    JobPlan job;
    for (int rank = 0; rank < ranks; ++rank) {
      RankPlan plan;
      plan.rank = plan.process = rank;
      job.ranks.push_back(plan);
      job.processes.push_back({0, {rank}});
    }
    StallWatch::Events events;
    events.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    events.on_stall = [this](const StallWatch::Finding& found) { found_.push_back(found); };
    LaunchConfig limits;
    limits.rendezvous = rendezvous;
    limits.step_timeout = step_timeout;
    watch_ = std::make_unique<StallWatch>(loop_, channel_, limits, events);
    watch_->begin(job, folder_, std::vector<std::string>(static_cast<size_t>(ranks), "here"));
  }

  // A rank that answers with its position and, if requested, one stack.
  void answer(int rank, const std::string& phase, const std::string& collective, int64_t calls) {
    std::shared_ptr<Channel> channel =
        connect_channel(server_->address(), rank, str("rank ", rank), milliseconds(5000));
    RankReport report;
    report.rank = rank;
    report.age = 5;
    report.position.phase = phase;
    report.position.step = 20;
    report.position.collective = collective;
    report.calls = {{"world", calls, 1, "all_reduce 'b' float32[4] sum"}};
    testing::answer_inquiries(channel, report);
    ranks_.push_back(channel);
  }

  void late(int rank, bool over) {
    watch_->posted(protocol::slow_collective, {{"rank", rank},
                                               {"group", "world"},
                                               {"number", 9},
                                               {"call", "all_reduce 'b' float32[4] sum"},
                                               {"members", {0, 1, 2}},
                                               {"seconds", 2.5},
                                               {"limit", 5},
                                               {"over", over}});
  }

  void run_until(const std::function<bool()>& done, milliseconds limit = milliseconds(10000)) {
    bool late = false;
    const auto timer = loop_.after(limit, [&] { late = true; });
    loop_.run_until([&] { return late || done(); });
    loop_.cancel(timer);
  }

  EventLoop loop_;
  std::string folder_;
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
  std::vector<std::shared_ptr<Channel>> ranks_;
  std::unique_ptr<StallWatch> watch_;
  std::vector<std::string> warnings_;
  std::vector<StallWatch::Finding> found_;
};

TEST_F(StallWatchTest, OneWarningForAllWaitingRanks) {
  begin(3);
  answer(0, "forward/backward", "all_reduce b", 9);
  answer(1, "loader", "", 8);
  answer(2, "forward/backward", "all_reduce b", 9);
  late(0, false);
  late(2, false);
  run_until([&] { return !warnings_.empty(); });
  late(2, false);
  run_until([] { return false; }, milliseconds(100));
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_EQ(warnings_[0],
            "warning: rank 1 has not reached all-reduce b for 2.50 s; it is in loader, step 20; that is half of "
            "its time limit (launch.collective)");
  EXPECT_THAT(found_, SizeIs(0));
}

TEST_F(StallWatchTest, AStallIsReportedOnceWithStacks) {
  answer(0, "forward/backward", "all_reduce b", 9);
  answer(1, "forward/backward", "", 8);
  answer(2, "forward/backward", "all_reduce b", 9);
  // All have answered, so the watch does not wait for its time limit. A busy machine may need a second or third
  // attempt.
  std::chrono::steady_clock::duration took{};
  for (int tries = 0; tries == 0 || (tries < 3 && took >= inquiry_patience); ++tries) {
    found_.clear();
    begin(3);
    const auto start = std::chrono::steady_clock::now();
    late(0, false);  // the stall replaces a warning that is in progress
    late(0, true);
    late(2, true);
    run_until([&] { return !found_.empty(); });
    took = std::chrono::steady_clock::now() - start;
  }
  EXPECT_LT(took, inquiry_patience);
  run_until([] { return false; }, milliseconds(50));
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_THAT(found_[0].diagnosis.ranks, ElementsAre(1));
  EXPECT_THAT(found_[0].table, HasSubstr("rank 1's thread, running:\n      ? (libmodel.so)"));
  EXPECT_THAT(found_[0].table, HasSubstr("ranks 0,2:\n      ? (libmodel.so)"));
  EXPECT_EQ(found_[0].json.at("stacks").size(), 3u);
  EXPECT_EQ(found_[0].step, 20);
}

TEST_F(StallWatchTest, ReadsTheStateFileOfARankThatDoesNotAnswer) {
  begin(2);
  StateFile file(folder_ + "/logs/rank1.state");
  file.phase("optimizer");
  file.step(7);
  answer(0, "forward/backward", "all_reduce b", 9);
  late(0, true);
  run_until([&] { return !found_.empty(); });
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_THAT(found_[0].diagnosis.ranks, ElementsAre(1));
  EXPECT_THAT(found_[0].diagnosis.message, HasSubstr("it is in optimizer, step 7"));
  EXPECT_EQ(found_[0].json["ranks"][1]["answered"], false);
}

TEST_F(StallWatchTest, WithoutItsFileTheLastHeartbeatCounts) {
  begin(2);
  answer(0, "forward/backward", "all_reduce b", 9);
  RankReport report;
  report.rank = 1;
  report.age = 3;
  report.position.phase = "saving";
  watch_->posted(protocol::heartbeat, Json::array({to_json(report)}));
  watch_->heartbeat_lost(1, 5, "rank 1 has sent no heartbeat for 5 s");
  run_until([&] { return !found_.empty(); });
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_THAT(found_[0].diagnosis.message, HasSubstr("no heartbeat for 5 s; it was in saving"));
  EXPECT_GE(found_[0].json["ranks"][1]["seconds"].get<double>(), 3);
  EXPECT_THAT(found_[0].table, HasSubstr("rank 1: no stack"));
}

TEST_F(StallWatchTest, AnUnchangedPositionEndsTheJobWithStepTimeout) {
  StateFile file(folder_ + "/logs/rank0.state");
  file.phase("forward/backward");
  begin(1, 0.3);
  answer(0, "forward/backward", "", 0);
  for (int i = 0; i < 5; ++i) {
    run_until([] { return false; }, milliseconds(100));
    file.step(i);
  }
  EXPECT_THAT(found_, SizeIs(0)) << "it moves";
  run_until([&] { return !found_.empty(); });
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_THAT(found_[0].diagnosis.message, HasSubstr("launch.step_timeout"));
}

TEST_F(StallWatchTest, StartingHasASeparateLimit) {
  StateFile file(folder_ + "/logs/rank0.state");
  file.phase("rendezvous");
  begin(1, 0.05);
  run_until([] { return false; }, milliseconds(300));
  EXPECT_THAT(found_, SizeIs(0));
}

TEST_F(StallWatchTest, NamesTheRankWhoseSetUpDoesNotEnd) {
  StateFile file(folder_ + "/logs/rank0.state");
  file.phase(building_phase);
  begin(1, 0, 0.1);
  answer(0, building_phase, "", 0);
  run_until([&] { return !found_.empty(); });
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_EQ(found_[0].diagnosis.kind, Failure::rendezvous);
  EXPECT_THAT(found_[0].diagnosis.ranks, ElementsAre(0));
  EXPECT_THAT(found_[0].diagnosis.message, HasSubstr("building the model"));
  EXPECT_THAT(found_[0].diagnosis.message, HasSubstr("--set launch.rendezvous=1"));
}

TEST_F(StallWatchTest, AllowsReadingDataWhileAnyRankProgresses) {
  const std::string path = folder_ + "/logs/rank0.state";
  StateFile reads(path), waits(folder_ + "/logs/rank1.state");
  for (StateFile* file : {&reads, &waits}) file->phase(reading_phase);
  begin(2, 0, 0.1);
  for (int rank : {0, 1}) answer(rank, reading_phase, "", 0);
  for (int i = 0; i < 10; ++i) {
    run_until([] { return false; }, milliseconds(100));
    touch_state_file(path);
  }
  EXPECT_THAT(found_, SizeIs(0)) << "rank 0 reads, and rank 1 waits for it";
  run_until([&] { return !found_.empty(); });
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_THAT(found_[0].diagnosis.message, HasSubstr("reading data without progress"));
}

}  // namespace
}  // namespace convoy
