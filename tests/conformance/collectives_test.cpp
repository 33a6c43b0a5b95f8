// Every operation, every dtype, all backends.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <thread>

#include "tests/conformance/conformance.h"

namespace convoy {
namespace {

using Collectives = Conformance;

// Returns numbers whose sum depends on the order of addition.
at::Tensor draws(int rank, int64_t count) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7 + rank);
  return at::randn({count}, generator, at::TensorOptions());
}

TEST_P(Collectives, AllReduceSupportsEveryDtypeAndReduction) {
  on_ranks([](Communicator& world) {
    for (auto dtype : all_dtypes()) {
      for (auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
        at::Tensor mine = numbers(world.rank(), {3, 7}, dtype);
        world.all_reduce(mine, op, {"x"})->wait();
        EXPECT_TRUE(same(mine, reduced(world.size(), {3, 7}, dtype, op))) << dtype << " " << static_cast<int>(op);
      }
    }
  });
}

TEST_P(Collectives, AllReduceWorksAroundEveryChunkSize) {
  on_ranks([](Communicator& world) {
    for (int64_t n : {1, 2, 5, 1023, 16384, 16385, 65537, 300001, 1500003}) {
      at::Tensor mine = numbers(world.rank(), {n}, at::kFloat);
      world.all_reduce(mine, ReduceOp::sum, {"x"})->wait();
      EXPECT_TRUE(same(mine, reduced(world.size(), {n}, at::kFloat, ReduceOp::sum))) << n;
      at::Tensor half = numbers(world.rank(), {n}, at::kBFloat16);
      world.all_reduce(half, ReduceOp::sum, {"x"})->wait();
      EXPECT_TRUE(same(half, reduced(world.size(), {n}, at::kBFloat16, ReduceOp::sum))) << n;
    }
  });
}

TEST_P(Collectives, AllReduceIsBitwiseRepeatableOnAllRanks) {
  on_ranks([](Communicator& world) {
    for (int64_t n : {100, 1000000}) {
      at::Tensor first;
      for (int round = 0; round < 3; ++round) {
        at::Tensor mine = draws(world.rank(), n);
        world.all_reduce(mine, ReduceOp::sum, {"x"})->wait();
        if (!first.defined()) first = mine;
        EXPECT_TRUE(at::equal(first, mine));
      }
      at::Tensor all = at::empty({world.size(), n});
      world.all_gather(all, first, {"x"})->wait();
      for (int r = 0; r < world.size(); ++r) EXPECT_TRUE(at::equal(all[r], first)) << r;
    }
  });
}

TEST_P(Collectives, AllGather) {
  on_ranks([](Communicator& world) {
    for (auto dtype : all_dtypes()) {
      at::Tensor output = at::zeros({world.size(), 4, 5}, dtype);
      world.all_gather(output, numbers(world.rank(), {4, 5}, dtype), {"x"})->wait();
      for (int r = 0; r < world.size(); ++r) EXPECT_TRUE(same(output[r], numbers(r, {4, 5}, dtype)));
    }
    at::Tensor scalars = at::zeros({world.size()}, at::kLong);
    world.all_gather(scalars, at::scalar_tensor(world.rank(), at::kLong), {"x"})->wait();
    EXPECT_TRUE(same(scalars, at::arange(world.size(), at::kLong)));
  });
}

TEST_P(Collectives, AllGatherWithUnequalSizes) {
  on_ranks([](Communicator& world) {
    // One rank has nothing, one nearly all; then all about the same.
    for (auto counts : {std::vector<int64_t>{0, 3, 1000, 1}, std::vector<int64_t>{7, 6, 7, 8}}) {
      counts.resize(world.size());
      std::vector<at::Tensor> parts;
      for (int r = 0; r < world.size(); ++r) parts.push_back(numbers(r, {counts[r], 3}, at::kFloat));
      at::Tensor wanted = at::cat(parts);
      at::Tensor output = at::zeros_like(wanted);
      world.all_gather_v(output, parts[world.rank()], counts, {"x"})->wait();
      EXPECT_TRUE(same(output, wanted));
    }
  });
}

// In every round, each rank reads the parts that the others wrote into shared memory. The bytes count as sent. A
// second, larger memory works after the first.
TEST_P(Collectives, AllGatherInSharedMemory) {
  const std::string backend = std::get<0>(GetParam());
  const bool shares = backend == "local" || backend == "gloo" || backend == "mpi";  // others may leave it out
  on_ranks([shares](Communicator& world) {
    const int n = world.size(), me = world.rank();
    for (const int64_t bytes : {int64_t{4096}, int64_t{3} << 20}) {
      const at::Tensor memory = world.common_memory(bytes, {"x"});
      EXPECT_EQ(memory.defined(), shares && n > 1);
      if (!memory.defined()) return;
      EXPECT_EQ(memory.numel(), bytes);
      EXPECT_TRUE(same(memory, at::zeros({bytes}, at::kByte)));
      world.barrier({"x"})->wait();
      for (int64_t round = 0; round < 4; ++round) {
        std::vector<int64_t> counts;
        std::vector<at::Tensor> parts;
        for (int r = 0; r < n; ++r) {
          counts.push_back(r == round % n ? 0 : bytes / 2 / n + r);
          parts.push_back(numbers(r + static_cast<int>(round), {counts.back()}, at::kByte));
        }
        const at::Tensor wanted = at::cat(parts), output = memory.narrow(0, round, wanted.numel());
        const at::Tensor own =
            output.narrow(0, std::accumulate(counts.begin(), counts.begin() + me, int64_t{0}), counts[size_t(me)]);
        own.copy_(parts[size_t(me)]);
        const int64_t before = world.bytes_sent();
        world.all_gather_v(output, own, counts, {"x"})->wait();
        EXPECT_EQ(world.bytes_sent() - before, (n - 1) * counts[size_t(me)]);
        EXPECT_TRUE(same(output, wanted));
        world.barrier({"x"})->wait();  // all have read
      }
      // Gathers into separate memory, from a part of the shared memory.
      at::Tensor other = at::zeros({n, 8}, at::kByte);
      const at::Tensor mine = memory.narrow(0, 8 * me, 8);
      mine.fill_(me + 1);
      world.all_gather(other, mine, {"x"})->wait();
      for (int r = 0; r < n; ++r) EXPECT_TRUE(same(other[r], at::full({8}, r + 1, at::kByte)));
    }
  });
}

TEST_P(Collectives, AllToAllWithUnequalSizes) {
  on_ranks([](Communicator& world) {
    int n = world.size(), me = world.rank();
    auto rows = [](int from, int to) { return static_cast<int64_t>((from * 3 + to * 5) % 4); };
    for (auto dtype : all_dtypes()) {
      std::vector<int64_t> in, out;
      std::vector<at::Tensor> mine, theirs;
      for (int r = 0; r < n; ++r) {
        in.push_back(rows(me, r));
        out.push_back(rows(r, me));
        mine.push_back(numbers(me * 10 + r, {rows(me, r), 2}, dtype));
        theirs.push_back(numbers(r * 10 + me, {rows(r, me), 2}, dtype));
      }
      at::Tensor wanted = at::cat(theirs);
      at::Tensor output = at::zeros_like(wanted);
      world.all_to_all_v(output, out, at::cat(mine), in, {"x"})->wait();
      EXPECT_TRUE(same(output, wanted));
    }
  });
}

TEST_P(Collectives, ReduceScatterSupportsEveryDtypeAndReduction) {
  on_ranks([](Communicator& world) {
    int n = world.size();
    for (auto dtype : all_dtypes()) {
      for (auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
        at::Tensor output = at::zeros({5, 3}, dtype);
        world.reduce_scatter(output, numbers(world.rank(), {n, 5, 3}, dtype), op, {"x"})->wait();
        EXPECT_TRUE(same(output, reduced(n, {n, 5, 3}, dtype, op)[world.rank()]));
      }
    }
    at::Tensor large = at::zeros({200001}, at::kFloat);
    world.reduce_scatter(large, numbers(world.rank(), {n, 200001}, at::kFloat), ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(large, reduced(n, {n, 200001}, at::kFloat, ReduceOp::sum)[world.rank()]));
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  on_ranks([](Communicator& world) {
    for (int root = 0; root < world.size(); ++root) {
      for (auto dtype : all_dtypes()) {
        at::Tensor tensor = numbers(world.rank(), {11}, dtype);
        world.broadcast(tensor, root, {"x"})->wait();
        EXPECT_TRUE(same(tensor, numbers(root, {11}, dtype)));
      }
      at::Tensor large = numbers(world.rank(), {2000003}, at::kFloat);
      world.broadcast(large, root, {"x"})->wait();
      EXPECT_TRUE(same(large, numbers(root, {2000003}, at::kFloat)));
    }
  });
}

TEST_P(Collectives, SendAndReceiveInARing) {
  on_ranks([](Communicator& world) {
    int n = world.size(), next = (world.rank() + 1) % n, before = (world.rank() + n - 1) % n;
    for (auto dtype : all_dtypes()) {
      for (int64_t size : {3, 700000}) {
        at::Tensor got = at::zeros({size}, dtype);
        auto sent = world.send(numbers(world.rank(), {size}, dtype), next, {"x"});
        world.receive(got, before, {"x"})->wait();
        sent->wait();
        EXPECT_TRUE(same(got, numbers(before, {size}, dtype)));
      }
    }
  });
}

TEST_P(Collectives, SendsBetweenTwoRanksKeepTheirOrder) {
  on_ranks([](Communicator& world) {
    if (world.size() == 1) return;
    std::vector<WorkPtr> works;
    std::vector<at::Tensor> got;
    // Receives are posted before, between and after collectives, and awaited in reverse order.
    for (int i = 0; i < 8; ++i) {
      if (world.rank() == 0) works.push_back(world.send(at::full({i + 1}, double(i)), 1, {"x"}));
      if (world.rank() == 1) {
        got.push_back(at::zeros({i + 1}));
        works.push_back(world.receive(got.back(), 0, {"x"}));
      }
      if (i % 3 == 0) world.barrier({"b"})->wait();
    }
    for (auto it = works.rbegin(); it != works.rend(); ++it) (*it)->wait();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], at::full({int64_t(i) + 1}, double(i)))) << i;
  });
}

TEST_P(Collectives, GroupsSendsAndReceivesBetweenAllRanks) {
  on_ranks([](Communicator& world) {
    std::vector<Transfer> transfers;
    std::vector<at::Tensor> got;
    for (int peer = 0; peer < world.size(); ++peer) {
      transfers.push_back({Transfer::Kind::send, numbers(world.rank() * 5 + peer, {9}, at::kInt), peer});
      got.push_back(at::zeros({9}, at::kInt));
      transfers.push_back({Transfer::Kind::receive, got.back(), peer});
    }
    world.group(transfers, {"x"})->wait();
    for (int peer = 0; peer < world.size(); ++peer) {
      EXPECT_TRUE(same(got[peer], numbers(peer * 5 + world.rank(), {9}, at::kInt)));
    }
  });
}

TEST_P(Collectives, BarrierHoldsEarlyRanks) {
  std::atomic<int> arrived{0};
  on_ranks([&](Communicator& world) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * world.rank()));
    ++arrived;
    world.barrier({"b"})->wait();
    if (world.backend() != "mpi") {
      EXPECT_EQ(arrived, world.size());
    }
  });
}

TEST_P(Collectives, AcceptStridedTensors) {
  on_ranks([](Communicator& world) {
    int n = world.size(), me = world.rank();
    at::Tensor whole = at::zeros({6, 8});
    at::Tensor part = whole.t().slice(0, 1, 7, 2);  // [3, 6], strides 2 and 8
    part.copy_(numbers(me, {3, 6}, at::kFloat));
    world.all_reduce(part, ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(part.contiguous(), reduced(n, {3, 6}, at::kFloat, ReduceOp::sum)));
    EXPECT_EQ(whole.slice(1, 0, 8, 2).abs().sum().item<float>(), 0) << "what lies between was written to";

    at::Tensor gathered = at::zeros({3, 6, n}).permute({2, 0, 1});
    world.all_gather(gathered, numbers(me, {6, 3}, at::kFloat).t(), {"x"})->wait();
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(same(gathered[r].contiguous(), numbers(r, {6, 3}, at::kFloat).t().contiguous()));

    at::Tensor column = at::zeros({5, 2}).select(1, 1);
    if (me == 0) column.copy_(numbers(3, {5}, at::kFloat));
    world.broadcast(column, 0, {"x"})->wait();
    EXPECT_TRUE(same(column.contiguous(), numbers(3, {5}, at::kFloat)));

    at::Tensor scattered = at::zeros({4, 2}).t();
    at::Tensor input = numbers(me, {2, n, 4}, at::kFloat).transpose(0, 1);
    world.reduce_scatter(scattered, input, ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(scattered.contiguous(),
                     reduced(n, {2, n, 4}, at::kFloat, ReduceOp::sum).transpose(0, 1)[me].contiguous()));
  });
}

TEST_P(Collectives, AcceptEmptyTensors) {
  on_ranks([](Communicator& world) {
    int n = world.size();
    at::Tensor nothing = at::empty({0, 3});
    world.all_reduce(nothing, ReduceOp::sum, {"x"})->wait();
    world.broadcast(nothing, 0, {"x"})->wait();
    world.all_gather(at::empty({n, 0, 3}), nothing, {"x"})->wait();
    world.all_gather_v(at::empty({0, 3}), nothing, std::vector<int64_t>(n, 0), {"x"})->wait();
    world.reduce_scatter(nothing, at::empty({n, 0, 3}), ReduceOp::max, {"x"})->wait();
    std::vector<int64_t> none(n, 0);
    world.all_to_all_v(at::empty({0, 3}), none, at::empty({0, 3}), none, {"x"})->wait();
    auto sent = world.send(nothing, (world.rank() + 1) % n, {"x"});
    world.receive(at::empty({0, 3}), (world.rank() + n - 1) % n, {"x"})->wait();
    sent->wait();
    world.group({}, {"x"})->wait();
    at::Tensor after = at::ones({2});
    world.all_reduce(after, ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(after, at::full({2}, double(n))));
  });
}

// local and mpi guarantee rank order; gloo guarantees only equal results on all ranks.
TEST_P(Collectives, AddInRankOrder) {
  on_ranks([](Communicator& world) {
    if (world.backend() == "gloo") return;
    for (int64_t n : {100, 200000}) {
      at::Tensor mine = draws(world.rank(), n), all = at::empty({world.size(), n});
      world.all_gather(all, mine, {"x"})->wait();
      at::Tensor wanted = all[0].clone();
      for (int r = 1; r < world.size(); ++r) wanted += all[r];
      world.all_reduce(mine, ReduceOp::sum, {"x"})->wait();
      EXPECT_TRUE(at::equal(mine, wanted)) << n;
    }
  });
}

TEST(MpiAndGloo, GiveTheSameBitsOnTwoRanks) {
  if (mpi_ranks() != 2) GTEST_SKIP() << "wants an mpirun of two ranks";
  for (auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (int64_t n : {100, 500000}) {
      std::map<std::string, at::Tensor> sums;
      for (const char* backend : {"mpi", "gloo"}) {
        RankGroup processes{backend, 2};
        processes.by_processes = true;
        run_ranks(processes, [&](Communicator& world) {
          at::Tensor mine = draws(world.rank(), n).to(dtype);
          world.all_reduce(mine, ReduceOp::sum, {"x"})->wait();
          sums[backend] = mine;
        });
      }
      EXPECT_TRUE(at::equal(sums["mpi"], sums["gloo"])) << dtype;
    }
  }
}

CONVOY_CONFORMANCE(Collectives);

}  // namespace
}  // namespace convoy
