#include "core/tensors/tensor_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <string>
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

TEST(TensorMemory, CopiesPastTheCacheByteForByte) {
  std::string from(1000, '\0'), wanted(1200, '-');
  for (size_t i = 0; i < from.size(); ++i) from[i] = char(i * 7 + 1);
  for (const size_t offset : {0, 1, 8, 63}) {
    for (const size_t bytes : {0, 1, 63, 64, 65, 127, 700}) {
      std::string to = wanted;
      copy_past_cache(to.data() + offset, from.data() + offset / 2, bytes);
      std::string expected = wanted;
      expected.replace(offset, bytes, from, offset / 2, bytes);
      EXPECT_EQ(to, expected) << bytes << " bytes at " << offset;
    }
  }
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
