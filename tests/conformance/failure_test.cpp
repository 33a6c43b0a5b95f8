// Aborts, time limits, mismatches; lifetime of a Work's tensors; counters and observers.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <thread>

#include "core/base/error.h"
#include "tests/conformance/conformance.h"
#include "tests/support/errors.h"

namespace convoy {
namespace {

using Failures = Conformance;
using std::chrono::milliseconds;

TEST_P(Failures, AbortWakesEveryWaiter) {
  on_ranks([](Communicator& world) {
    if (world.size() == 1) return;
    // A separate group, so that the next case has an intact world.
    CommunicatorPtr group = world.split(0, world.rank(), {"split"});
    if (world.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      group->abort("because of a test");
    } else {
      std::vector<at::Tensor> tensors{at::ones({10}), at::ones({300000})};
      WorkPtr other = group->all_reduce(tensors[0], ReduceOp::sum, {"first"});
      WorkPtr large = group->all_reduce(tensors[1], ReduceOp::sum, {"second"});
      std::thread waiter([&] {
        CommError error = failure_of([&] { large->wait(); });
        EXPECT_EQ(error.kind(), Failure::peer_lost) << error.what();
        EXPECT_TRUE(has(error.what(), "because of a test")) << error.what();
      });
      CommError error = failure_of([&] { other->wait(); });
      EXPECT_EQ(error.kind(), Failure::peer_lost) << error.what();
      EXPECT_TRUE(has(error.what(), "because of a test")) << error.what();
      EXPECT_TRUE(has(error.what(), "first")) << error.what();
      waiter.join();
      EXPECT_EQ(failure_of([&] { other->wait(); }).what(), std::string(error.what())) << "the same each time";
    }
    // Later calls fail too, on every rank.
    EXPECT_EQ(failure_of([&] { group->barrier({"late"})->wait(); }).kind(), Failure::peer_lost);
    world.barrier({"the world is ready"})->wait();
  });
}

TEST_P(Failures, TimeLimitsNameOperationAndTensor) {
  on_ranks([](Communicator& world) {
    if (world.size() == 1) return;
    CommunicatorPtr group = world.split(0, world.rank(), {"split"});
    if (world.rank() != 0) {
      at::Tensor tensor = at::ones({10});
      auto start = std::chrono::steady_clock::now();
      CommError error = failure_of([&] {
        group->all_reduce(tensor, ReduceOp::sum, {"bucket 2", milliseconds(300)})->wait();
      });
      auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      // A peer that has failed first also fails the others.
      if (error.kind() == Failure::hang) {
        EXPECT_TRUE(has(error.what(), "all_reduce 'bucket 2'")) << error.what();
        EXPECT_GE(seconds, 0.29);
      } else {
        EXPECT_EQ(error.kind(), Failure::peer_lost) << error.what();
        EXPECT_GT(world.size(), 2);
      }
      EXPECT_LT(seconds, 5);
    }
    world.barrier({"the world is ready"})->wait();
  });
}

TEST_P(Failures, ReceiveFromAStalledPeerTimesOut) {
  on_ranks([](Communicator& world) {
    if (world.size() == 1) return;
    CommunicatorPtr group = world.split(world.rank() < 2 ? 0 : 1, world.rank(), {"split"});
    if (world.rank() == 1) {
      at::Tensor tensor = at::ones({10});
      CommError error = failure_of([&] { group->receive(tensor, 0, {"activation", milliseconds(200)})->wait(); });
      EXPECT_EQ(error.kind(), Failure::hang) << error.what();
      EXPECT_TRUE(has(error.what(), "receive 'activation'")) << error.what();
    }
    world.barrier({"the world is ready"})->wait();
  });
}

// Sockets and local ranks report it with other messages.
TEST_P(Failures, ReportAReceiveOfTheWrongLength) {
  const std::string backend = std::get<0>(GetParam());
  if (backend == "local" || backend == sockets || backend == hosts) GTEST_SKIP() << "not by lengths";
  on_ranks([](Communicator& world) {
    if (world.size() == 1) return;
    CommunicatorPtr group = world.split(0, world.rank(), {"split"});
    if (world.rank() == 0) group->send(at::ones({3}), 1, {"x"})->wait();
    if (world.rank() == 1) {
      at::Tensor tensor = at::ones({5});
      const CommError error = failure_of([&] { group->receive(tensor, 0, {"x"})->wait(); });
      EXPECT_EQ(error.kind(), Failure::disagreement) << error.what();
      EXPECT_TRUE(has(error.what(), "sent 12 bytes where 20 were expected")) << error.what();
    }
    world.barrier({"the world is ready"})->wait();
  });
}

TEST_P(Failures, DistinguishKindsOfMismatch) {
  on_ranks([](Communicator& world) {
    if (world.size() != 2 || world.backend() == "gloo") return;  // gloo's own checks end the process
    CommunicatorPtr group = world.split(0, world.rank(), {"split"});
    at::Tensor tensor = at::ones({world.rank() == 0 ? 10 : 12});
    CommError error = failure_of([&] {
      group->all_reduce(tensor, ReduceOp::sum, {"bucket", milliseconds(500)})->wait();
    });
    EXPECT_TRUE(error.kind() == Failure::disagreement || error.kind() == Failure::peer_lost) << error.what();
    world.barrier({"the world is ready"})->wait();
  });
}

TEST_P(Failures, WorksDropTheirTensors) {
  on_ranks([](Communicator& world) {
    int n = world.size();
    at::Tensor tensor = at::ones({1000}), output = at::zeros({n, 1000});
    std::vector<WorkPtr> kept;
    for (int i = 0; i < 20; ++i) {
      kept.push_back(world.all_reduce(tensor, ReduceOp::max, {"x"}));
      kept.back()->wait();
      EXPECT_EQ(tensor.storage().use_count(), 1) << "all_reduce";
      kept.push_back(world.all_gather(output, tensor, {"x"}));
      kept.back()->wait();
      EXPECT_EQ(tensor.storage().use_count(), 1) << "all_gather";
      EXPECT_EQ(output.storage().use_count(), 1) << "all_gather";
      kept.push_back(world.send(tensor, (world.rank() + 1) % n, {"x"}));
      at::Tensor got = at::zeros({1000});
      kept.push_back(world.receive(got, (world.rank() + n - 1) % n, {"x"}));
      kept[kept.size() - 1]->wait();
      kept[kept.size() - 2]->wait();
      EXPECT_EQ(tensor.storage().use_count(), 1) << "send";
      EXPECT_EQ(got.storage().use_count(), 1) << "receive";
    }
  });
}

TEST_P(Failures, CountBytesByTheTextbookFormula) {
  on_ranks([](Communicator& world) {
    int64_t n = world.size();
    auto sent = [&](const std::function<void()>& action) {
      int64_t before = world.bytes_sent();
      action();
      return world.bytes_sent() - before;
    };
    at::Tensor tensor = at::ones({1200}), all = at::ones({n, 1200});
    EXPECT_EQ(sent([&] { world.all_reduce(tensor, ReduceOp::max, {})->wait(); }), 2 * (n - 1) * 4800 / n);
    EXPECT_EQ(sent([&] { world.all_gather(all, tensor, {})->wait(); }), (n - 1) * 4800);
    EXPECT_EQ(sent([&] { world.reduce_scatter(tensor, all, ReduceOp::max, {})->wait(); }), (n - 1) * 4800);
    EXPECT_EQ(sent([&] { world.broadcast(tensor, 0, {})->wait(); }), world.rank() == 0 ? (n - 1) * 4800 : 0);
    EXPECT_EQ(sent([&] { world.barrier({})->wait(); }), 0);
  });
}

TEST_P(Failures, WaitsAreObservedAndTimed) {
  RankGroup observed = group();
  std::mutex mutex;
  std::vector<std::string> names;
  observed.waiting = [&](const char* name) {
    std::lock_guard lock(mutex);
    names.push_back(name);
  };
  run_ranks(observed, [](Communicator& world) {
    if (world.size() == 1) return;
    if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(150));
    at::Tensor tensor = at::ones({10});
    world.all_reduce(tensor, ReduceOp::sum, {"bucket 3"})->wait();
    if (world.rank() != 0) {
      EXPECT_GT(world.wait_seconds(), 0.05);
      EXPECT_LE(world.wait_cpu_seconds(), world.wait_seconds() + 0.01);
    }
    EXPECT_EQ(world.devices().size(), 1u);
  });
  bool here = observed.backend != "mpi" || std::getenv("OMPI_COMM_WORLD_RANK") != std::string("0");
  if (observed.size == 1 || !here) return;
  EXPECT_NE(std::find(names.begin(), names.end(), "all_reduce bucket 3"), names.end());
  EXPECT_EQ(names.back(), "");
}

CONVOY_CONFORMANCE(Failures);

}  // namespace
}  // namespace convoy
