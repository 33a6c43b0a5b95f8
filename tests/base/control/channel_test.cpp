// Operations of the control channel between threads of one process, over IPv4 and IPv6.
#include "core/control/channel.h"

#include "tests/base/control/channel_fixture.h"
#include "tests/support/sanitizer.h"

namespace convoy {
namespace {

using namespace convoy::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ChannelTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string transport = GetParam();
    if (transport == "local") {
      local_ = make_local_channel();
      return;
    }
    if (transport == "ipv6" && !has_ipv6_loopback()) GTEST_SKIP() << "this machine has no ::1";
    server_ = serve_channel(loopback(transport == "ipv6" ? "::1" : "127.0.0.1"), {});
  }

  // Returns the channel of a participant. Over the transport `local` all participants share one channel.
  std::shared_ptr<Channel> join(int participant) {
    if (local_) return local_;
    return connect_channel(server_->address(), participant, str("rank ", participant), patience);
  }

 private:
  std::shared_ptr<Channel> local_;
  std::unique_ptr<ChannelServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Transports, ChannelTest, ::testing::Values("local", "ipv4", "ipv6"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ChannelTest, StoresValuesWithAnyBytes) {
  auto a = join(0), b = join(1);
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);
  a->set("every", every);
  a->set("empty", "");
  EXPECT_EQ(b->get("every", patience), every);
  EXPECT_EQ(b->get("empty", patience), "");
  a->set("every", "later");
  EXPECT_EQ(b->peek("every"), "later");
  EXPECT_EQ(b->peek("absent"), std::nullopt);
  EXPECT_EQ(b->peek("empty"), "");
  EXPECT_TRUE(b->erase("every"));
  EXPECT_FALSE(b->erase("every"));
  EXPECT_EQ(a->peek("every"), std::nullopt);
}

TEST_P(ChannelTest, LargeValues) {
  auto a = join(0), b = join(1);
  std::string large(size_t{sanitized ? 2 : 20} << 20, 'x');
  large[12345] = '\0';
  a->set("large", large);
  EXPECT_TRUE(b->get("large", patience) == large);
}

TEST_P(ChannelTest, GetWaitsUntilSet) {
  auto a = join(0), b = join(1);
  std::thread setter([&] {
    std::this_thread::sleep_for(20ms);
    b->set("late", "came");
  });
  EXPECT_EQ(a->get("late", patience), "came");
  setter.join();
}

TEST_P(ChannelTest, GetNamesTheKeyAfterItsTimeLimit) {
  auto a = join(0);
  const auto error = thrown([&] { a->get("never", 30ms); });
  EXPECT_EQ(error.kind, Failure::rendezvous);
  EXPECT_THAT(error.message, HasSubstr("'never'"));
  a->set("never", "after all");
  EXPECT_EQ(a->get("never", 0ms), "after all");
}

TEST_P(ChannelTest, CountsForSixteenParticipants) {
  constexpr int participants = 16, each = 100;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < participants; ++i) channels.push_back(join(i));
  Seen<int64_t> values;
  on_threads(participants, [&](int i) {
    for (int n = 0; n < each; ++n) values.add(channels[i]->add("counter", 1));
  });
  auto all = values.now();
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), static_cast<size_t>(participants * each));
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i + 1));
  EXPECT_EQ(channels[0]->peek("counter"), "1600");
  EXPECT_EQ(channels[1]->add("counter", -1600), 0);
}

TEST_P(ChannelTest, AddRefusesAValueThatIsNoNumber) {
  auto a = join(0);
  a->set("text", "12x");
  EXPECT_THAT(thrown([&] { a->add("text", 1); }).message, HasSubstr("'text', whose value is no number"));
  a->set("most", "9223372036854775807");
  EXPECT_THAT(thrown([&] { a->add("most", 1); }).message, HasSubstr("overflows"));
  EXPECT_EQ(a->peek("most"), "9223372036854775807");
}

TEST_P(ChannelTest, CompareSetSucceedsOnce) {
  constexpr int participants = 8;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < participants; ++i) channels.push_back(join(i));
  Seen<std::string> winners;
  on_threads(participants, [&](int i) { winners.add(channels[i]->compare_set("leader", "", str("rank ", i))); });
  for (const auto& winner : winners.now()) EXPECT_EQ(winner, channels[0]->peek("leader"));
  const std::string leader = *channels[0]->peek("leader");
  EXPECT_EQ(channels[0]->compare_set("leader", "somebody", "me"), leader);
  EXPECT_EQ(channels[0]->compare_set("leader", leader, "me"), "me");
}

TEST_P(ChannelTest, VotesSetTheLargestNumberAndAWaitNamesTheMissing) {
  auto a = join(0), b = join(1), c = join(2);
  b->vote("most", 1, 3, -4);
  const auto error = thrown([&] { b->get("most", 10ms); });
  EXPECT_EQ(error.kind, Failure::rendezvous);
  EXPECT_THAT(error.message, HasSubstr("get 'most': nothing came within 10 ms; still missing: 0, 2"));
  EXPECT_THAT(thrown([&] { b->vote("most", 1, 3, 9); }).message, HasSubstr("has given a value before"));
  c->vote("most", 2, 3, 12);
  EXPECT_EQ(a->peek("most"), std::nullopt);
  a->vote("most", 0, 3, 5);
  EXPECT_EQ(b->get("most", patience), "12");
  EXPECT_THAT(thrown([&] { a->vote("most", 0, 3, 5); }).message, HasSubstr("used before"));
}

TEST_P(ChannelTest, AgreeReturnsAllValuesInOrder) {
  constexpr int participants = 8;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < participants; ++i) channels.push_back(join(i));
  for (int round = 0; round < 20; ++round) {
    on_threads(participants, [&](int i) {
      const auto values = channels[i]->agree(str("round/", round), i, participants, str("vote ", i), patience);
      ASSERT_EQ(values.size(), size_t{participants});
      for (int j = 0; j < participants; ++j) EXPECT_EQ(values[j], str("vote ", j));
    });
  }
  EXPECT_THAT(join(0)->agree("alone", 0, 1, "x", patience), ElementsAre("x"));
}

TEST_P(ChannelTest, AgreeLaterReturnsAllValuesAndFreesTheName) {
  constexpr int participants = 4;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < participants; ++i) channels.push_back(join(i));
  for (int round = 0; round < 3; ++round) {
    Seen<std::vector<std::string>> seen;
    for (int i = 0; i < participants; ++i) {
      EXPECT_TRUE(seen.now().empty()) << "before all have voted";
      channels[i]->supervised()->agree_later("again", i, participants, str("vote ", i, " of ", round),
                                             [&](const std::vector<std::string>& values) { seen.add(values); });
    }
    for (const auto& values : seen.wait_for(participants)) {
      ASSERT_EQ(values.size(), size_t{participants});
      for (int j = 0; j < participants; ++j) EXPECT_EQ(values[j], str("vote ", j, " of ", round));
    }
  }
  EXPECT_GT(channels[0]->supervised()->cpu_seconds(), 0);
}

TEST_P(ChannelTest, AgreeLaterMayBeCalledFromItsCallback) {
  auto a = join(0), b = join(1);
  Seen<std::string> seen;
  for (int me = 0; me < 2; ++me) {
    const auto channel = me == 0 ? a : b;  // the local channel serves both
    channel->supervised()->agree_later("first", me, 2, "x", [&, channel, me](const std::vector<std::string>&) {
      channel->supervised()->agree_later(
          "second", me, 2, str(me), [&](const std::vector<std::string>& values) { seen.add(values[0] + values[1]); });
    });
  }
  EXPECT_THAT(seen.wait_for(2), ElementsAre("01", "01"));
}

TEST_P(ChannelTest, AgreeListsMissingParticipants) {
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < 3; ++i) channels.push_back(join(i));
  on_threads(2, [&](int i) {
    const auto error = thrown([&] { channels[i]->agree("start", i, 4, "", 100ms); });
    EXPECT_EQ(error.kind, Failure::rendezvous);
    EXPECT_THAT(error.message, HasSubstr("'start'"));
    EXPECT_THAT(error.message, HasSubstr("missing: "));
    EXPECT_THAT(error.message, HasSubstr("2, 3"));
  });
  const auto error = thrown([&] { channels[2]->agree("start", 2, 4, "", 30ms); });
  EXPECT_EQ(error.rank, 3);
  EXPECT_THAT(error.message, HasSubstr("missing: 3"));
}

TEST_P(ChannelTest, AgreeRefusesMisuse) {
  auto a = join(0);
  EXPECT_THAT(thrown([&] { a->agree("x", 2, 2, "", 10ms); }).message, HasSubstr("not one of 2"));
  EXPECT_THAT(thrown([&] { a->agree("y", 0, 2, "", 10ms); }).message, HasSubstr("missing: 1"));
  EXPECT_THAT(thrown([&] { a->agree("y", 0, 2, "", 10ms); }).message, HasSubstr("has given a value before"));
  EXPECT_THAT(thrown([&] { a->agree("y", 1, 3, "", 10ms); }).message, HasSubstr("others expect 2"));
  a->agree("y", 1, 2, "", 10ms);
  EXPECT_THAT(thrown([&] { a->agree("y", 1, 2, "", 10ms); }).message, HasSubstr("used before"));
}

TEST_P(ChannelTest, WatchSeesExistingAndLaterValues) {
  auto a = join(0), b = join(1);
  a->set("rank/1", "one");
  a->set("ranks", "other");
  a->set("rank/0", "zero");
  Seen<std::string> seen;
  b->watch("rank/", [&](const std::string& key, const std::string& value) { seen.add(key + "=" + value); });
  a->set("rank/2", std::string("t\0o", 3));
  a->add("rank/1", 0 * a->compare_set("rank/1", "one", "1").size());
  a->set("other", "x");
  a->set("rank/3", "end");
  EXPECT_THAT(seen.wait_for(6), ElementsAre("rank/0=zero", "rank/1=one", "rank/2=" + std::string("t\0o", 3), "rank/1=1",
                                            "rank/1=1", "rank/3=end"));
}

TEST_P(ChannelTest, CallbacksMayCallBack) {
  auto a = join(0), b = join(1);
  Seen<std::string> seen;
  b->watch("ask", [&](const std::string&, const std::string& value) {
    b->set("answer", value + "!");
    seen.add(str(b->add("count", 1), *b->peek("answer")));
  });
  a->set("ask", "yes");
  EXPECT_EQ(a->get("answer", patience), "yes!");
  EXPECT_THAT(seen.wait_for(1), ElementsAre("1yes!"));
}

TEST_P(ChannelTest, AbortWakesEveryone) {
  constexpr int participants = 6;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < participants; ++i) channels.push_back(join(i));
  Seen<std::string> reported;
  for (auto& channel : channels) channel->on_abort([&](const Abort& reason) { reported.add(reason.message); });
  EXPECT_EQ(channels[0]->aborted(), std::nullopt);
  Abort reason;
  reason.kind = Failure::training;
  reason.rank = 5;
  reason.step = 17;
  reason.host = "here";
  reason.message = "NaN in block 3";
  on_threads(participants, [&](int i) {
    if (i == 5) {
      std::this_thread::sleep_for(20ms);
      return channels[i]->abort(reason);
    }
    const auto error = thrown([&] {
      i % 2 == 0 ? (void)channels[i]->get("never", patience)
                 : (void)channels[i]->agree("never", i, participants, "", patience);
    });
    EXPECT_EQ(error.kind, Failure::peer_lost);
    EXPECT_EQ(error.rank, 5);
    EXPECT_THAT(error.message, HasSubstr("NaN in block 3"));
  });
  reported.wait_for(participants);
  for (auto& channel : channels) {
    ASSERT_TRUE(channel->aborted());
    EXPECT_EQ(to_json(*channel->aborted()), to_json(reason));
  }
  // Posts and results still arrive; waits for keys that may never be set fail.
  channels[0]->set("result", "x");
  EXPECT_EQ(channels[1]->get("result", patience), "x");
  EXPECT_EQ(thrown([&] { channels[1]->get("never", patience); }).kind, Failure::peer_lost);
  Seen<int> late;
  channels[2]->on_abort([&](const Abort& abort) { late.add(abort.rank); });
  EXPECT_THAT(late.wait_for(1), ElementsAre(5));
  EXPECT_EQ(reported.now().size(), size_t{participants});
}

TEST_P(ChannelTest, KeepsTheFirstCauseInsteadOfALostPeer) {
  auto a = join(0), b = join(1), c = join(2);
  Seen<std::string> reported;
  for (auto& channel : {a, b, c}) channel->on_abort([&](const Abort& reason) { reported.add(reason.message); });
  auto reason = [](Failure kind, int rank, const std::string& message) {
    Abort abort;
    abort.kind = kind;
    abort.rank = rank;
    abort.message = message;
    return abort;
  };
  auto flush = [&](const std::string& message) {
    for (auto& channel : {a, b, c}) {
      channel->peek("x");  // all earlier messages have arrived
      EXPECT_EQ(channel->aborted()->message, message);
    }
  };
  a->abort(reason(Failure::peer_lost, 0, "lost rank 2"));
  a->peek("x");
  flush("lost rank 2");
  b->abort(reason(Failure::peer_lost, 1, "lost rank 2 too"));
  b->peek("x");
  flush("lost rank 2");
  c->abort(reason(Failure::training, 2, "the cause"));
  c->peek("x");
  flush("the cause");
  b->abort(reason(Failure::hang, 1, "a consequence"));
  b->peek("x");
  flush("the cause");
  reported.wait_for(3);
  for (const auto& message : reported.now()) EXPECT_EQ(message, "lost rank 2");
}

}  // namespace
}  // namespace convoy
