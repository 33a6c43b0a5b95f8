// Tensors on a GPU over backends that exchange on the host: staged through pinned memory. One GPU is enough, since
// ranks may share it. Skips itself without a GPU.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include <thread>

#include "core/control/channel.h"
#include "tests/conformance/conformance.h"

namespace convoy {
namespace {

const at::Device gpu(at::kCUDA, 0);

class StagedGpu : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU, and this machine has none";
    if (GetParam() == "mpi" && mpi_ranks() == 0) GTEST_SKIP() << "not under mpirun";
  }
  static void on_ranks(const std::function<void(Communicator&)>& body) {
    RankGroup group{GetParam(), GetParam() == "mpi" ? mpi_ranks() : 2};
    group.on_one_gpu = true;
    run_ranks(group, body);
  }
};

TEST_P(StagedGpu, EveryOperationMatchesTheHost) {
  on_ranks([](Communicator& world) {
    const int me = world.rank(), n = world.size();
    for (auto dtype : all_dtypes()) {
      at::Tensor mine = numbers(me, {3, 70}, dtype).to(gpu);
      world.all_reduce(mine, ReduceOp::max, {"x"})->wait();
      EXPECT_TRUE(same(mine.cpu(), reduced(n, {3, 70}, dtype, ReduceOp::max))) << dtype;
      at::Tensor all = at::zeros({n, 5}, at::TensorOptions().dtype(dtype).device(gpu));
      world.all_gather(all, numbers(me, {5}, dtype).to(gpu), {"x"})->wait();
      for (int r = 0; r < n; ++r) EXPECT_TRUE(same(all[r].cpu(), numbers(r, {5}, dtype))) << dtype;
    }
    at::Tensor slice = at::zeros({5}, at::TensorOptions().device(gpu));
    world.reduce_scatter(slice, numbers(me, {n, 5}, at::kFloat).to(gpu), ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(slice.cpu(), reduced(n, {n, 5}, at::kFloat, ReduceOp::sum)[me]));
    at::Tensor received = numbers(me, {7}, at::kFloat).to(gpu);
    world.broadcast(received, n - 1, {"x"})->wait();
    EXPECT_TRUE(same(received.cpu(), numbers(n - 1, {7}, at::kFloat)));
    at::Tensor got = at::zeros({6}, at::TensorOptions().device(gpu));
    world
        .group({{Transfer::Kind::send, numbers(me, {6}, at::kFloat).to(gpu), (me + 1) % n},
                {Transfer::Kind::receive, got, (me + n - 1) % n}},
               {"x"})
        ->wait();
    EXPECT_TRUE(same(got.cpu(), numbers((me + n - 1) % n, {6}, at::kFloat)));
    // A strided tensor, larger than any one chunk.
    at::Tensor wide = at::ones({1000, 2000}, at::TensorOptions().device(gpu));
    world.all_reduce(wide.t(), ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(at::equal(wide.cpu(), at::full({1000, 2000}, static_cast<double>(n), at::kFloat)));
    world.barrier({"x"})->wait();
  });
}

// Work issued earlier on the caller's stream is sent, and later work on that stream sees the result.
TEST_P(StagedGpu, RunsInOrderOnTheCallersStream) {
  on_ranks([](Communicator& world) {
    const c10::StreamGuard guard(c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(gpu));
    at::Tensor busy = at::rand({2000, 2000}, at::TensorOptions().device(gpu));
    for (int round = 0; round < 10; ++round) {
      at::Tensor product = busy;
      for (int i = 0; i < 5; ++i) product = at::mm(product, busy).clamp_(0, 1);
      at::Tensor tensor = product.mul(0).add_(world.rank() + 1);
      world.all_reduce(tensor, ReduceOp::sum, {"x"})->wait();
      const int n = world.size();
      EXPECT_EQ(tensor.sub(n * (n + 1) / 2).abs_().max().item<float>(), 0) << "round " << round;
    }
  });
}

const auto backend_name = [](const ::testing::TestParamInfo<std::string>& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Threads, StagedGpu, ::testing::Values("gloo", "local"), backend_name);
INSTANTIATE_TEST_SUITE_P(Mpi, StagedGpu, ::testing::Values("mpi"), backend_name);  // under mpirun

TEST(NcclGpu, RefusesTwoRanksOnOneGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU, and this machine has none";
  Registry& registry = test_registry();
  const auto channel = make_local_channel();
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      BackendRequest request;
      request.rank = rank;
      request.size = 2;
      request.device = gpu;
      request.channel = channel;
      request.job = "shared";
      request.rendezvous = std::chrono::seconds(20);
      try {
        registry.backends.make("nccl", request);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& text : errors) {
    EXPECT_NE(text.find("one rank per GPU, and ranks 0, 1 all have"), std::string::npos) << text;
    EXPECT_NE(text.find("backend=gloo"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace convoy
