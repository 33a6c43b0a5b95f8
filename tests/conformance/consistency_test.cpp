// Ranks that call different collectives get an error before a tensor moves. It names both calls.
#include "backends/communicator/collective_check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <thread>

#include "core/base/error.h"
#include "tests/conformance/conformance.h"
#include "tests/support/errors.h"

namespace convoy {
namespace {

using Consistency = Conformance;

// Rank 0 and the others make different calls in a new group. Each fails with a message that contains both calls, and
// the world continues.
void expect_difference(Communicator& world, const std::function<void(Communicator&)>& as_zero,
                       const std::function<void(Communicator&)>& as_others, const std::string& zero,
                       const std::string& others) {
  if (world.size() == 1) return;
  CommunicatorPtr group = world.split(0, world.rank(), {"split"});
  const CommError error = failure_of([&] { world.rank() == 0 ? as_zero(*group) : as_others(*group); });
  EXPECT_EQ(error.kind(), Failure::disagreement) << error.what();
  EXPECT_TRUE(has(error.what(), "rank 0: " + zero)) << error.what();
  EXPECT_TRUE(has(error.what(), ": " + others)) << error.what();
  if (world.size() > 2 && world.backend() != "local") {
    EXPECT_EQ(error.rank(), 0) << "who stands alone is named";
  }
  EXPECT_TRUE(failure_of([&] { group->barrier({"late"})->wait(); }).kind() != Failure::internal);
  world.barrier({"the world is ready"})->wait();
}

TEST_P(Consistency, Shape) {
  on_ranks([](Communicator& world) {
    const auto reduce = [](int64_t rows) {
      return [rows](Communicator& group) {
        group.all_reduce(at::ones({rows, 2}), ReduceOp::sum, {"bucket 2"})->wait();
      };
    };
    expect_difference(world, reduce(1000), reduce(1200), "all_reduce 'bucket 2' float32[1000,2] sum",
                      "all_reduce 'bucket 2' float32[1200,2] sum");
  });
}

TEST_P(Consistency, Dtype) {
  on_ranks([](Communicator& world) {
    const auto reduce = [](at::ScalarType dtype) {
      return
          [dtype](Communicator& group) { group.all_reduce(at::ones({8}, dtype), ReduceOp::sum, {"bucket"})->wait(); };
    };
    // Equal bytes on all ranks: no transport can find the difference.
    expect_difference(world, reduce(at::kFloat), reduce(at::kInt), "all_reduce 'bucket' float32[8] sum",
                      "all_reduce 'bucket' int32[8] sum");
  });
}

TEST_P(Consistency, Operation) {
  on_ranks([](Communicator& world) {
    expect_difference(
        world, [](Communicator& group) { group.all_reduce(at::ones({8}), ReduceOp::sum, {"x"})->wait(); },
        [](Communicator& group) { group.broadcast(at::ones({8}), 0, {"x"})->wait(); }, "all_reduce 'x' float32[8] sum",
        "broadcast 'x' float32[8] root 0");
  });
}

TEST_P(Consistency, RootReductionAndName) {
  on_ranks([](Communicator& world) {
    const auto root = [](int root) {
      return [root](Communicator& group) { group.broadcast(at::ones({8}), root, {"x"})->wait(); };
    };
    expect_difference(world, root(0), root(1), "broadcast 'x' float32[8] root 0", "broadcast 'x' float32[8] root 1");
    const auto reduce = [](ReduceOp op, const std::string& name) {
      return [op, name](Communicator& group) { group.all_reduce(at::ones({8}), op, {name})->wait(); };
    };
    expect_difference(world, reduce(ReduceOp::sum, "x"), reduce(ReduceOp::max, "x"), "all_reduce 'x' float32[8] sum",
                      "all_reduce 'x' float32[8] max");
    expect_difference(world, reduce(ReduceOp::sum, "bucket 1"), reduce(ReduceOp::sum, "bucket 2"),
                      "all_reduce 'bucket 1' float32[8] sum", "all_reduce 'bucket 2' float32[8] sum");
  });
}

TEST_P(Consistency, RefusesDifferentCounts) {
  on_ranks([](Communicator& world) {
    const int n = world.size();
    const auto gather = [n](int64_t last) {
      return [n, last](Communicator& group) {
        std::vector<int64_t> counts(static_cast<size_t>(n), 2);
        counts.back() = last;
        at::Tensor output = at::zeros({2 * (n - 1) + last, 3});
        at::Tensor input = at::zeros({counts[static_cast<size_t>(group.rank())], 3});
        group.all_gather_v(output, input, counts, {"rows"})->wait();
      };
    };
    expect_difference(world, gather(3), gather(4), "all_gather_v 'rows' float32[3] of counts",
                      "all_gather_v 'rows' float32[3] of counts");
  });
}

// One rank sends another count than its peer expects. Counts may differ between ranks, so only the sum of sent and
// expected counts over all ranks shows the mistake.
TEST_P(Consistency, RefusesDifferentCountsBetweenTwo) {
  on_ranks([](Communicator& world) {
    const int n = world.size();
    const auto exchange = [n](int64_t to_last) {
      return [n, to_last](Communicator& group) {
        std::vector<int64_t> sent(static_cast<size_t>(n), 2), expected(static_cast<size_t>(n), 2);
        sent.back() = to_last;
        group.all_to_all_v(at::zeros({2 * n, 3}), expected, at::zeros({2 * (n - 1) + to_last, 3}), sent, {"rows"})
            ->wait();
      };
    };
    if (n == 1) return;
    CommunicatorPtr right = world.split(0, world.rank(), {"right"});
    for (int i = 0; i < 3; ++i) exchange(2)(*right);
    CommunicatorPtr wrong = world.split(0, world.rank(), {"wrong"});
    const CommError error = failure_of([&] { exchange(world.rank() == 0 ? 3 : 2)(*wrong); });
    EXPECT_EQ(error.kind(), Failure::disagreement) << error.what();
    EXPECT_TRUE(has(error.what(), world.backend() == "local" ? "rank 0 sends 36 bytes" : "rank 0: all_to_all_v 'rows'"))
        << error.what();
    world.barrier({"the world is ready"})->wait();
  });
}

TEST_P(Consistency, FindsAnExtraCallAtTheNextCall) {
  on_ranks([](Communicator& world) {
    expect_difference(
        world,
        [](Communicator& group) {
          WorkPtr extra = group.all_reduce(at::ones({4}), ReduceOp::sum, {"extra"});
          group.barrier({"end"})->wait();
          extra->wait();
        },
        [](Communicator& group) { group.barrier({"end"})->wait(); }, "all_reduce 'extra' float32[4] sum",
        "barrier 'end'");
  });
}

TEST_P(Consistency, ConcurrentOperationsKeepOrderAndValues) {
  on_ranks([](Communicator& world) {
    CommunicatorPtr group = world.split(0, world.rank(), {"split"});
    const int n = group->size();
    // From deferred calls to calls that start at once.
    for (int round = 0; round < 3; ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<WorkPtr> works;
      for (int i = 0; i < static_cast<int>(checked_at_first) / 2; ++i) {
        tensors.push_back(at::full({3}, i + 1.0));
        works.push_back(group->all_reduce(tensors.back(), ReduceOp::sum, {str("tensor ", i)}));
      }
      for (int i = static_cast<int>(works.size()) - 1; i >= 0; --i) {
        works[i]->wait();
        EXPECT_EQ(tensors[i][2].item<float>(), static_cast<float>(n * (i + 1)));
      }
    }
  });
}

TEST_P(Consistency, StartsAnOperationWithoutAWait) {
  on_ranks([](Communicator& world) {
    if (world.size() == 1 || world.backend() == "local") return;  // there the waiting ranks do the work
    CommunicatorPtr group = world.split(0, world.rank(), {"split"});
    at::Tensor tensor = at::ones({4});
    WorkPtr work = group->all_reduce(tensor, ReduceOp::sum, {"quiet"});
    // Rank 0 waits at once; the others run another operation that rank 0 reaches only afterwards.
    if (world.rank() == 0) work->wait();
    world.barrier({"after"})->wait();
    work->wait();
    EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(world.size()));
  });
}

TEST_P(Consistency, SamplesLaterCalls) {
  if (std::get<0>(GetParam()) == hosts)
    GTEST_SKIP() << "two ranks of a host find it first, and do not know who is wrong";
  on_ranks([](Communicator& world) {
    // Equal sizes in bytes, so only the comparison can find the difference. local compares every call.
    const auto reduce = [](at::ScalarType dtype) {
      return [dtype](Communicator& group) {
        for (int64_t i = 0; i < checked_at_first + 1; ++i) group.barrier({"first"})->wait();
        for (int64_t i = 0; i < 4000; ++i) {
          group.all_reduce(at::ones({4}, dtype), ReduceOp::max, {"later"})->wait();
          if (i > 1000) std::this_thread::sleep_for(std::chrono::microseconds(200));  // a report needs time
        }
      };
    };
    expect_difference(world, reduce(at::kFloat), reduce(at::kInt), "all_reduce 'later' float32[4] max",
                      "all_reduce 'later' int32[4] max");
  });
}

TEST(CallIntervals, GrowWithTheNumberOfCalls) {
  auto comparisons = [](int64_t from, int64_t to) {
    int64_t count = 0;
    for (int64_t i = from; i < to; ++i) count += compared_at(i);
    return count;
  };
  EXPECT_EQ(comparisons(0, checked_at_first + 1), 0) << "those are compared one by one";
  EXPECT_EQ(comparisons(checked_at_first + 1, checked_at_first + 65), 1);
  EXPECT_LT(comparisons(0, 1000000), 1000);
  EXPECT_GE(comparisons(1000000, 2000000), 100);
}

CONVOY_CONFORMANCE(Consistency);

}  // namespace
}  // namespace convoy
