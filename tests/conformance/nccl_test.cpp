// nccl on the GPUs of this machine: one rank per GPU, as threads. Skips itself where there are fewer than two.
#include <torch/cuda.h>

#include "backends/catalogue.h"
#include "tests/conformance/conformance.h"

namespace convoy {
namespace {

TEST(NcclGpu, CollectivesOnTwoDevices) {
  if (!torch::cuda::is_available() || torch::cuda::device_count() < 2) {
    GTEST_SKIP() << "needs two GPUs, and this machine has "
                 << (torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0);
  }
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

}  // namespace
}  // namespace convoy
