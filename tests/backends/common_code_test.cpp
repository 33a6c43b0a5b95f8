// Code that backends share: abort notifier, staging, the store for c10d, catalogue and registry.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "backends/c10d/store.h"
#include "backends/catalogue/catalogue.h"
#include "backends/communicator/group_state.h"
#include "backends/communicator/progress.h"
#include "backends/communicator/staging.h"
#include "backends/cuda/module/registry.h"
#include "backends/registry.h"
#include "core/control/channel.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));
  return condition();
}

TEST(AbortNotifier, SendsAGroupsAbortToItsPeersOnly) {
  auto channel = make_local_channel();
  auto mine = AbortNotifier::create(channel, "job"), theirs = AbortNotifier::create(channel, "job");
  auto other = AbortNotifier::create(channel, "other");
  std::atomic<int> world{0}, part{0}, strangers{0};
  theirs->add("world", [&](const std::string& reason) { world += reason == "why"; });
  theirs->add("world/0.1", [&](const std::string&) { ++part; });
  other->add("world", [&](const std::string&) { ++strangers; });
  mine->notify_peers("world", "why");
  EXPECT_TRUE(soon([&] { return world == 1; }));
  EXPECT_EQ(part, 0);
  EXPECT_EQ(strangers, 0);
  std::string late;
  theirs->add("world", [&](const std::string& reason) { late = reason; });
  EXPECT_EQ(late, "why") << "a later handler runs at once";
}

TEST(AbortNotifier, AbortsEveryGroupWhenTheJobEnds) {
  auto channel = make_local_channel();
  auto notifier = AbortNotifier::create(channel, "job");
  std::atomic<int> calls{0};
  notifier->add("a", [&](const std::string& reason) { calls += reason.find("rank 3") != std::string::npos; });
  notifier->add("b", [&](const std::string&) { ++calls; });
  notifier->remove("b");
  Abort abort;
  abort.rank = 3;
  abort.message = "out of luck";
  channel->abort(abort);
  EXPECT_TRUE(soon([&] { return calls == 1; }));
  notifier.reset();
  channel->set("abort-comm/job/a", "nobody listens any more");
}

TEST(Staging, CopiesOnlyUnsupportedTensors) {
  Staging staging({at::kCPU}, at::kCPU);
  at::Tensor whole = at::zeros({4, 4});
  EXPECT_TRUE(staging.input(whole).is_same(whole));
  at::Tensor column = whole.select(1, 2);
  at::Tensor given = staging.output(column, true);
  EXPECT_TRUE(given.is_contiguous());
  given.fill_(3);
  EXPECT_EQ(whole.sum().item<float>(), 0);
  staging.finish();
  EXPECT_EQ(whole.sum().item<float>(), 12);
  staging.drop();
  EXPECT_EQ(given.storage().use_count(), 1);
}

TEST(ChannelBackedStore, ImplementsTheStoreInterface) {
  auto channel = make_local_channel();
  auto store = c10::make_intrusive<ChannelBackedStore>(channel, "p/", milliseconds(200));
  store->set("a", std::vector<uint8_t>{0, 255, 7});
  EXPECT_EQ(store->get("a"), (std::vector<uint8_t>{0, 255, 7}));
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", 4), 7);
  EXPECT_TRUE(store->check({"a", "n"}));
  EXPECT_FALSE(store->check({"a", "b"}));
  EXPECT_THROW(store->wait({"b"}, milliseconds(50)), CommError);
  EXPECT_EQ(store->compareSet("c", std::vector<uint8_t>{}, {1}), (std::vector<uint8_t>{1}));
  EXPECT_EQ(store->compareSet("c", std::vector<uint8_t>{9}, {2}), (std::vector<uint8_t>{1}));
  EXPECT_TRUE(store->deleteKey("c"));
  EXPECT_FALSE(channel->peek("p/c"));
}

TEST(BackendCatalogue, ListsTheBackendsOfTheRegistry) {
  Registry registry;
  register_backends(registry);
  std::vector<std::string> names;
  for (const BackendEntry& entry : backend_catalogue()) {
    names.push_back(entry.name);
    EXPECT_FALSE(entry.help.empty());
    EXPECT_FALSE(entry.how_to_get.empty());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, registry.backends.names());
}

TEST(BackendCatalogue, NamesThePackageOfAMissingBackend) {
  try {
    absent_backend("mpi")(BackendRequest());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("libopenmpi-dev"), std::string::npos) << error.what();
  }
}

TEST(Nccl, NeedsAGpu) {
  if (!backend_catalogue()[3].built) GTEST_SKIP() << "not in this build";
  Registry registry;
  register_backends(registry);
  BackendRequest request;
  request.size = 2;
  request.channel = make_local_channel();
  try {
    registry.backends.make("nccl", request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::device_missing) << error.what();
  }
}

// Fails its group on the engine's thread, and is over only after `seen`.
class FailingOperation : public ProgressOperation {
 public:
  explicit FailingOperation(const std::shared_ptr<ProgressGroup>& group)
      : ProgressOperation(group, {}), group_(group) {}
  std::string missing() const override { return ""; }
  std::promise<void> seen;

 protected:
  bool advance(bool&) override {
    if (first_) return first_ = false;
    const CommError error(Failure::disagreement, 1, "the calls differ");
    group_->fail(error);
    seen.get_future().wait_for(std::chrono::seconds(10));
    throw CommError(error);
  }

 private:
  std::shared_ptr<ProgressGroup> group_;
  bool first_ = true;
};

TEST(ProgressEngine, AWaiterSeesTheFailureThatAnotherThreadFound) {
  ProgressEngine engine("test");
  const auto operation = std::make_shared<FailingOperation>(std::make_shared<ProgressGroup>());
  engine.start(operation);
  ASSERT_TRUE(soon([&] { return operation->failed(); }));
  EXPECT_FALSE(operation->over());
  EXPECT_TRUE(engine.wait_until(*operation, Clock::now() + std::chrono::seconds(5)));
  try {
    operation->check();
    ADD_FAILURE() << "no failure";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), Failure::disagreement) << "a later call of the group must not hide the cause";
    EXPECT_EQ(error.rank(), 1);
  }
  operation->seen.set_value();
}

// Is over when its peer has answered.
class WaitingOperation : public ProgressOperation {
 public:
  WaitingOperation() : ProgressOperation(std::make_shared<ProgressGroup>(), {}) {}
  std::string missing() const override { return ""; }
  std::atomic<bool> answered{false};
  std::atomic<int> polls{0};
  std::atomic<int64_t> shortest{std::numeric_limits<int64_t>::max()};  // microseconds between polls of the engine

 protected:
  bool advance(bool&) override {
    const auto now = Clock::now();
    if (++polls > 2)  // the first poll is that of `start`
      shortest =
          std::min<int64_t>(shortest, std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count());
    last_ = now;
    return answered;
  }

 private:
  Clock::time_point last_;
};

// Each poll takes time of the core that computes.
TEST(ProgressEngine, PollsAStalledPeerSeldomAndASleepingThreadWakes) {
  ProgressEngine engine("test");
  for (int round = 0; round < 2; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread of the engine sleeps now
    const auto operation = std::make_shared<WaitingOperation>();
    engine.start(operation);
    EXPECT_TRUE(soon([&] { return operation->polls > 1; })) << "nothing polls the operation, which nobody waits for";
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LT(operation->polls, 200) << "at intervals of half a millisecond there are 600";
    operation->answered = true;
    EXPECT_TRUE(soon([&] { return operation->over(); }));
  }
}

TEST(ProgressEngine, PollsAnOperationThatBeginsAfterAStalledOne) {
  ProgressEngine engine("test");
  const auto silent = std::make_shared<WaitingOperation>(), next = std::make_shared<WaitingOperation>();
  engine.start(silent);
  std::this_thread::sleep_for(milliseconds(100));  // the naps have their largest length now
  engine.start(next);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LT(next->shortest, 2000) << "it is polled as rarely as the silent one";
  silent->answered = next->answered = true;
  EXPECT_TRUE(soon([&] { return silent->over() && next->over(); }));
}

TEST(CudaHalf, IsLoadedOnDemandAndContainsNccl) {
  if (!backend_catalogue()[3].built) GTEST_SKIP() << "not in this build";
  EXPECT_EQ(dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD), nullptr) << "loaded before it was asked for";
  load_cuda_half();
  EXPECT_NE(cuda_half_symbol(make_nccl_symbol), nullptr);
  EXPECT_THROW(cuda_half_symbol("convoy_make_tea"), Error);
}

TEST(Local, ListsMissingRanks) {
  Registry registry;
  register_backends(registry);
  BackendRequest request;
  request.size = 3;
  request.job = "lonely";
  request.rendezvous = milliseconds(50);
  try {
    registry.backends.make("local", request);
    FAIL();
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), Failure::rendezvous);
    EXPECT_NE(std::string(error.what()).find("ranks 1, 2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace convoy
