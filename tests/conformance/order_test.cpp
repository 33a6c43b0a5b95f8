// Many operations at once, several threads, sub-groups, one message beyond 2^31 elements.
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <thread>

#include "tests/conformance/conformance.h"

namespace convoy {
namespace {

using Order = Conformance;

TEST_P(Order, WaitsInAnyOrder) {
  on_ranks([](Communicator& world) {
    std::vector<at::Tensor> tensors, gathered;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 64; ++i) {
      tensors.push_back(numbers(world.rank() + i, {1 + (i * 7919) % 50000}, i % 2 ? at::kFloat : at::kInt));
      gathered.push_back(at::zeros({world.size(), tensors.back().numel()}, tensors.back().options()));
      if (i % 4 == 3) {
        works.push_back(world.all_gather(gathered.back(), tensors.back(), {"gather"}));
      } else {
        works.push_back(world.all_reduce(tensors.back(), ReduceOp::max, {"reduce"}));
      }
    }
    for (auto it = works.rbegin(); it != works.rend(); ++it) (*it)->wait();
    for (int i = 0; i < 64; ++i) {
      at::Tensor wanted = numbers(i, tensors[i].sizes(), tensors[i].scalar_type());
      for (int r = 1; r < world.size() && i % 4 != 3; ++r) {
        wanted = at::maximum(wanted, numbers(r + i, tensors[i].sizes(), tensors[i].scalar_type()));
      }
      if (i % 4 == 3) {
        for (int r = 0; r < world.size(); ++r) {
          EXPECT_TRUE(same(gathered[i][r], numbers(r + i, tensors[i].sizes(), tensors[i].scalar_type()))) << i;
        }
      } else {
        EXPECT_TRUE(same(tensors[i], wanted)) << i;
      }
    }
  });
}

TEST_P(Order, PollingCompletesOperations) {
  on_ranks([](Communicator& world) {
    at::Tensor tensor = at::ones({100000});
    WorkPtr work = world.all_reduce(tensor, ReduceOp::sum, {"x"});
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!work->done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(work->done());
    EXPECT_EQ(tensor[99999].item<float>(), world.size());
    work->wait();
    work->wait();
  });
}

TEST_P(Order, WorksMayBeAwaitedInOtherThreads) {
  on_ranks([](Communicator& world) {
    at::Tensor tensor = at::ones({70000});
    WorkPtr work = world.all_reduce(tensor, ReduceOp::sum, {"x"});
    std::thread a([&] { work->wait(); }), b([&] { work->wait(); });
    a.join();
    b.join();
    EXPECT_EQ(tensor.sum().item<float>(), 70000.0f * world.size());
  });
}

TEST_P(Order, SplitOrdersByKeyWithinColours) {
  on_ranks([](Communicator& world) {
    int n = world.size(), me = world.rank();
    // Odd and negative colours; keys reverse the order.
    CommunicatorPtr half = world.split(me % 2 ? -3 : 1000000, -me, {"split"});
    std::vector<int> members;
    for (int r = n - 1; r >= 0; --r) {
      if (r % 2 == me % 2) members.push_back(r);
    }
    ASSERT_EQ(half->size(), static_cast<int>(members.size()));
    EXPECT_EQ(half->rank(), std::find(members.begin(), members.end(), me) - members.begin());
    at::Tensor ids = at::zeros({half->size()}, at::kLong);
    half->all_gather(ids, at::scalar_tensor(me, at::kLong), {"x"})->wait();
    for (int i = 0; i < half->size(); ++i) EXPECT_EQ(ids[i].item<int64_t>(), members[i]);

    // Equal keys keep the old order. A group of one among others; a split of a split.
    CommunicatorPtr some = world.split(me == 0 ? 1 : 0, 5, {"split"});
    EXPECT_EQ(some->size(), me == 0 ? 1 : n - 1);
    EXPECT_EQ(some->rank(), me == 0 ? 0 : me - 1);
    CommunicatorPtr again = some->split(0, -some->rank(), {"split"});
    EXPECT_EQ(again->rank(), some->size() - 1 - some->rank());
    at::Tensor one = at::ones({3});
    again->all_reduce(one, ReduceOp::sum, {"x"})->wait();
    EXPECT_EQ(one[0].item<float>(), some->size());
  });
}

TEST_P(Order, GroupsOfOneRankDoNotMix) {
  on_ranks([](Communicator& world) {
    CommunicatorPtr twin = world.split(0, world.rank(), {"split"});
    at::Tensor a = at::ones({50000}), b = at::full({50000}, 2.0);
    WorkPtr first, second;
    // Each rank has a separate order between groups.
    if (world.rank() % 2) {
      first = world.all_reduce(a, ReduceOp::sum, {"a"});
      second = twin->all_reduce(b, ReduceOp::sum, {"b"});
    } else {
      second = twin->all_reduce(b, ReduceOp::sum, {"b"});
      first = world.all_reduce(a, ReduceOp::sum, {"a"});
    }
    first->wait();
    second->wait();
    EXPECT_EQ(a[49999].item<float>(), world.size());
    EXPECT_EQ(b[49999].item<float>(), 2 * world.size());
  });
}

TEST_P(Order, SeveralThreadsWithAGroupEach) {
  on_ranks([](Communicator& world) {
    constexpr int count = 3;
    std::vector<CommunicatorPtr> groups;
    for (int t = 0; t < count; ++t) groups.push_back(world.split(0, t == 1 ? -world.rank() : world.rank(), {"split"}));
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int i = 0; i < 30; ++i) {
            at::Tensor tensor = at::full({1 + i * 700}, double(i + t));
            groups[t]->all_reduce(tensor, ReduceOp::sum, {"x"})->wait();
            EXPECT_EQ(tensor[i * 700].item<float>(), (i + t) * world.size());
          }
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(Order, BeyondTwoToThe31ElementsSlow) {
  if (std::get<1>(GetParam()) > 2) GTEST_SKIP() << "two ranks are enough, and all that fit into memory";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer takes several times this memory: more than 20 GB";
#endif
  on_ranks([](Communicator& world) {
    int64_t n = (int64_t{1} << 31) + 12345;
    at::Tensor tensor = at::zeros({n}, at::kByte);
    if (world.rank() == 0) {
      tensor[n - 1] = 7;
      tensor[int64_t{1} << 31] = 9;
    }
    CallOptions patient{"x", std::chrono::seconds(300)};
    world.broadcast(tensor, 0, patient)->wait();
    EXPECT_EQ(tensor[n - 1].item<int>(), 7);
    EXPECT_EQ(tensor[int64_t{1} << 31].item<int>(), 9);
    tensor[n - 2] = world.rank() + 1;
    world.all_reduce(tensor, ReduceOp::sum, patient)->wait();
    EXPECT_EQ(tensor[n - 1].item<int>(), 7 * world.size());
    EXPECT_EQ(tensor[n - 2].item<int>(), world.size() * (world.size() + 1) / 2);
    EXPECT_EQ(tensor[int64_t{1} << 31].item<int>(), 9 * world.size());
    if (world.size() == 1) return;
    // One message of this length from rank to rank.
    if (world.rank() == 0) {
      tensor[n - 3] = 5;
      world.send(tensor, 1, patient)->wait();
    } else if (world.rank() == 1) {
      world.receive(tensor, 0, patient)->wait();
      EXPECT_EQ(tensor[n - 3].item<int>(), 5);
      EXPECT_EQ(tensor[n - 1].item<int>(), 7 * world.size());
    }
    world.barrier(patient)->wait();
  });
}

CONVOY_CONFORMANCE(Order);

}  // namespace
}  // namespace convoy
