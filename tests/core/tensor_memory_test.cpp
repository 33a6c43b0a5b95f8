#include "core/tensors/tensor_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

namespace convoy {
namespace {

TEST(TensorMemory, CountsCurrentAndPeakBytes) {
  count_tensor_memory();
  count_tensor_memory();  // once is enough
  const int64_t before = memory_statistics().tensors;
  reset_tensor_peak();
  constexpr int64_t mib = 1 << 20;
  {
    const at::Tensor kept = at::empty({mib}, at::kByte);
    {
      const at::Tensor passing = at::empty({4 * mib}, at::kByte);
      EXPECT_NEAR(memory_statistics().tensors - before, 5 * mib, 16384);
    }
    EXPECT_NEAR(memory_statistics().tensors - before, mib, 16384);
    EXPECT_NEAR(memory_statistics().tensors_peak - before, 5 * mib, 16384);
    reset_tensor_peak();
    EXPECT_NEAR(memory_statistics().tensors_peak - before, mib, 16384);
  }
  EXPECT_EQ(memory_statistics().tensors, before);
  EXPECT_GT(memory_statistics().resident_peak, 10 * mib);
}

TEST(TensorMemory, CountsMemoryFreedByOtherThreads) {
  count_tensor_memory();
  const int64_t before = memory_statistics().tensors;
  at::Tensor tensor = at::empty({1 << 16}, at::kFloat);
  std::thread([&] { tensor = at::Tensor(); }).join();
  EXPECT_EQ(memory_statistics().tensors, before);
  EXPECT_EQ(at::empty({0}).numel(), 0);
  EXPECT_EQ(memory_statistics().tensors, before);
}

}  // namespace
}  // namespace convoy
