// All ranks stop before the same step, at any speeds and any time of the request.

#include <random>

#include "core/control/channel.h"
#include "tests/base/control/channel_fixture.h"

namespace convoy {
namespace {

using namespace convoy::testing;
using ::testing::HasSubstr;

// A collective of one step: no rank leaves it before all have joined, and a missing peer is a failure.
class Collective {
 public:
  explicit Collective(int size) : size_(size) {}
  bool meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
      return true;
    }
    return changed_.wait_for(lock, patience, [&] { return round_ != round; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
  int64_t round_ = 0;
};

struct Training {
  int ranks = 4;
  int64_t first = 0;         // resumed at this step
  int64_t steps = 1000000;   // length of the run without a stop
  int collective_every = 1;  // steps between collectives (local SGD)
  std::chrono::microseconds request_after{0};
  unsigned seed = 0;
};

// The step before which each rank stopped.
std::vector<int64_t> train(const Training& run, const std::vector<std::shared_ptr<Channel>>& channels) {
  Collective collective(run.ranks);
  std::vector<int64_t> stopped(static_cast<size_t>(run.ranks), -1);
  on_threads(run.ranks + 1, [&](int rank) {
    if (rank == run.ranks) {
      std::this_thread::sleep_for(run.request_after);
      channels[0]->set(protocol::stop_request, "1");
      return;
    }
    std::mt19937 random(run.seed * 100 + static_cast<unsigned>(rank));
    auto dawdle = [&](unsigned limit) {
      const auto time = random() % limit;
      if (time > limit / 4) std::this_thread::sleep_for(std::chrono::microseconds(time));
    };
    dawdle(2000);  // set-up
    StopAgreement agreement(channels[static_cast<size_t>(rank)], rank, run.ranks, patience);
    int64_t step = run.first;
    for (; step < run.steps && !agreement.stops_before(step); ++step) {
      dawdle(300);
      if (step % run.collective_every == 0) {
        ASSERT_TRUE(collective.meet()) << "rank " << rank << " waits in step " << step << " for peers that stopped";
      }
    }
    stopped[static_cast<size_t>(rank)] = step;
  });
  return stopped;
}

void expect_together(const std::vector<int64_t>& stopped, const Training& run) {
  for (int64_t step : stopped) {
    EXPECT_EQ(step, stopped[0]) << "seed " << run.seed;
    EXPECT_LE(step, run.steps);
  }
}

TEST(StopAgreement, StopsAllRanksAtOneStep) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Training run;
    run.seed = seed;
    run.ranks = 1 + static_cast<int>(seed % 6);
    run.first = seed % 3 == 0 ? 0 : 1000;
    run.collective_every = seed % 5 == 0 ? 7 : 1;
    run.request_after = std::chrono::microseconds(seed * 7919 % 6000);
    std::vector<std::shared_ptr<Channel>> channels(static_cast<size_t>(run.ranks), make_local_channel());
    expect_together(train(run, channels), run);
  }
}

TEST(StopAgreement, OverSockets) {
  for (unsigned seed = 0; seed < 25; ++seed) {
    Training run;
    run.seed = seed;
    run.request_after = std::chrono::microseconds(seed * 7919 % 20000);
    auto server = serve_channel(loopback(), {});
    std::vector<std::shared_ptr<Channel>> channels;
    for (int i = 0; i < run.ranks; ++i) {
      channels.push_back(connect_channel(server->address(), i, str("rank ", i), patience));
    }
    expect_together(train(run, channels), run);
  }
}

TEST(StopAgreement, RequestNearTheEndOfTheRun) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Training run;
    run.seed = seed;
    run.ranks = 3;
    run.steps = 8;
    run.request_after = std::chrono::microseconds(seed * 97 % 4000);
    std::vector<std::shared_ptr<Channel>> channels(3, make_local_channel());
    expect_together(train(run, channels), run);
  }
}

TEST(StopAgreement, NeverBlocksWithoutARequest) {
  auto channel = make_local_channel();
  StopAgreement agreement(channel, 0, 2, patience);
  for (int64_t step = 0; step < 100; ++step) ASSERT_FALSE(agreement.stops_before(step));
  EXPECT_NO_THROW(channel->vote(protocol::stop_at, 0, 2, 0)) << "it named a boundary";
}

TEST(StopAgreement, StopsAtTheFirstStepIfRequestedBeforeTheStart) {
  auto channel = make_local_channel();
  channel->set(protocol::stop_request, "1");
  on_threads(2, [&](int rank) {
    StopAgreement agreement(channel, rank, 2, patience);
    // The channel's thread delivers the request, so a step or two may pass before.
    int64_t step = 40;
    while (!agreement.stops_before(step)) {
      ASSERT_LT(++step, 1000000);
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST(StopAgreement, NamesTheRankThatDoesNotAnswer) {
  auto channel = make_local_channel();
  StopAgreement agreement(channel, 0, 3, 50ms);
  channel->vote(protocol::stop_at, 1, 3, 1);
  channel->set(protocol::stop_request, "1");
  const auto error = thrown([&] {
    for (int64_t step = 0;; ++step) agreement.stops_before(step);
  });
  EXPECT_EQ(error.kind, Failure::rendezvous);
  EXPECT_EQ(error.rank, 2);
  EXPECT_THAT(error.message, HasSubstr("rank 2 did not report"));
}

TEST(StopAgreement, AnAbortEndsTheWait) {
  auto channel = make_local_channel();
  StopAgreement agreement(channel, 0, 2, patience);
  channel->set(protocol::stop_request, "1");
  std::thread killer([&] {
    std::this_thread::sleep_for(20ms);
    Abort reason;
    reason.kind = Failure::training;
    reason.rank = 1;
    channel->abort(reason);
  });
  const auto error = thrown([&] {
    for (int64_t step = 0;; ++step) agreement.stops_before(step);
  });
  EXPECT_EQ(error.kind, Failure::peer_lost);
  killer.join();
}

}  // namespace
}  // namespace convoy
