// nccl on the GPUs of this machine: one rank per GPU, as threads. Skips itself with fewer than two.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>
#if __has_include(<cuda_runtime_api.h>)
#include <ATen/cuda/CUDAGraph.h>
#endif

#include <thread>

#include "backends/communicator/collective_check.h"
#include "core/base/error.h"
#include "tests/conformance/conformance.h"

namespace convoy {
namespace {

int gpus() { return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0; }

// Runs `body` on two ranks, as threads, each on its GPU. A group compares its first collectives before they start, so
// barriers come first: the collectives of `body` start at once.
void on_two_gpus(const std::function<void(Communicator&, const at::Device&)>& body) {
  RankGroup group{"nccl", 2};
  group.on_gpus = true;
  run_ranks(group, [&](Communicator& world) {
    const auto device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(world.rank()));
    const c10::DeviceGuard guard(device);
    for (int64_t i = 0; i <= checked_at_first; ++i) world.barrier({"warming up"})->wait();
    body(world, device);
  });
}

TEST(NcclGpu, CollectivesOnTwoDevices) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs, and this machine has " << gpus();
  RankGroup gpus{"nccl", 2};
  gpus.on_gpus = true;
  run_ranks(gpus, [](Communicator& world) {
    auto device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(world.rank()));
    for (auto dtype : all_dtypes()) {
      at::Tensor mine = numbers(world.rank(), {3, 7}, dtype).to(device);
      world.all_reduce(mine, ReduceOp::max, {"x"})->wait();
      EXPECT_TRUE(same(mine.cpu(), reduced(2, {3, 7}, dtype, ReduceOp::max))) << dtype;
    }
    at::Tensor output = at::zeros({5}, at::TensorOptions().device(device));
    world.reduce_scatter(output, numbers(world.rank(), {2, 5}, at::kFloat).to(device), ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(output.cpu(), reduced(2, {2, 5}, at::kFloat, ReduceOp::sum)[world.rank()]));
    // Tensors on the host are staged.
    at::Tensor host = at::ones({4});
    world.all_reduce(host, ReduceOp::sum, {"x"})->wait();
    EXPECT_TRUE(same(host, at::full({4}, 2.0)));
    at::Tensor rows = at::zeros({3, 2}, at::TensorOptions().device(device));
    world.all_gather_v(rows, numbers(world.rank(), {world.rank() + 1, 2}, at::kFloat).to(device), {1, 2}, {"x"})
        ->wait();
    EXPECT_TRUE(same(rows.cpu(), at::cat({numbers(0, {1, 2}, at::kFloat), numbers(1, {2, 2}, at::kFloat)})));
    at::Tensor got = at::zeros({6}, at::TensorOptions().device(device));
    at::Tensor sent = numbers(world.rank(), {6}, at::kFloat).to(device);
    world
        .group({{Transfer::Kind::send, sent, 1 - world.rank()}, {Transfer::Kind::receive, got, 1 - world.rank()}},
               {"x"})
        ->wait();
    EXPECT_TRUE(same(got.cpu(), numbers(1 - world.rank(), {6}, at::kFloat)));
    EXPECT_EQ(world.split(world.rank(), 0, {"split"})->size(), 1);
    world.barrier({"x"})->wait();
  });
}

// `wait` orders the result before later work on the stream, and returns while the device still works.
TEST(NcclGpu, WaitOrdersTheStreamWithoutBlockingTheHost) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs, and this machine has " << gpus();
  on_two_gpus([](Communicator& world, const at::Device& device) {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    const c10::StreamGuard guard(cuda.getStreamFromGlobalPool(device));
    const at::Tensor busy = at::rand({8192, 8192}, at::TensorOptions().device(device));
    at::Tensor product = at::mm(busy, busy);
    cuda.getStream(device).synchronize();
    for (int i = 0; i < 20; ++i) product = at::mm(product, busy).clamp_(0, 1);
    at::Tensor tensor = product.mul(0).add_(world.rank() + 1);
    world.all_reduce(tensor, ReduceOp::sum, {"x"})->wait();
    c10::Event behind(at::kCUDA);
    behind.record(cuda.getStream(device));
    EXPECT_FALSE(behind.query()) << "the host waited for the device";
    EXPECT_EQ(tensor.sub(3).abs_().max().item<float>(), 0);
  });
}

TEST(NcclGpu, NamesAMissingRankWithinTheTimeLimit) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs, and this machine has " << gpus();
  on_two_gpus([](Communicator& world, const at::Device& device) {
    if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(8));
    at::Tensor tensor = at::ones({4}, at::TensorOptions().device(device));
    CallOptions call{"alone", std::chrono::seconds(2)};
    const auto start = std::chrono::steady_clock::now();
    world.all_reduce(tensor, ReduceOp::sum, call)->wait();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device).synchronize();  // returns, because the group is aborted
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(6));
    try {
      world.all_reduce(tensor, ReduceOp::sum, {"next"})->wait();
      ADD_FAILURE() << "the group continues";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), Failure::hang);
      EXPECT_NE(std::string(error.what()).find("'alone'"), std::string::npos) << error.what();
    }
  });
}

#if __has_include(<cuda_runtime_api.h>)
TEST(NcclGpu, ReplaysACapturedGraph) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs, and this machine has " << gpus();
  on_two_gpus([](Communicator& world, const at::Device& device) {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    const c10::StreamGuard guard(cuda.getStreamFromGlobalPool(device));
    at::Tensor tensor = at::ones({1000}, at::TensorOptions().device(device));
    world.all_reduce(tensor, ReduceOp::sum, {"x"})->wait();  // communicators are made outside
    cuda.getStream(device).synchronize();
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    tensor.add_(1);
    world.all_reduce(tensor, ReduceOp::sum, {"x"})->wait();
    tensor.mul_(2);
    graph.capture_end();
    tensor.fill_(world.rank());
    for (int i = 0; i < 3; ++i) graph.replay();
    // x → 2·(x₀ + x₁ + 2), from 0 and 1: 6, then 2·(6 + 6 + 2) = 28, then 116.
    EXPECT_EQ(tensor.sub(116).abs_().max().item<float>(), 0);
    world.barrier({"x"})->wait();
  });
}
#endif

}  // namespace
}  // namespace convoy
