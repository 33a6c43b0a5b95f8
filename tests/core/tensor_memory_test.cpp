#include "core/tensors/tensor_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "core/base/error.h"

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

TEST(TensorMemory, RefusesATensorLargerThanTheHost) {
  count_tensor_memory();
  const int64_t before = memory_statistics().tensors;
  try {
    at::empty({int64_t{1} << 44}, at::kByte);
    FAIL() << "16 TiB are no memory of a host";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("a tensor of 16"), std::string::npos) << error.what();
  }
  EXPECT_EQ(memory_statistics().tensors, before);
}

TEST(TensorMemory, ViewsAndReadsWithoutOperators) {
  const at::Tensor all = at::arange(24, at::kDouble);
  const at::Tensor view = plain_view(all, {2, 3}, 5);
  EXPECT_TRUE(view.equal(all.narrow(0, 5, 6).view({2, 3})));
  view.fill_(-1);
  EXPECT_EQ(all[10].item<double>(), -1);
  EXPECT_TRUE(plain_view(plain_view(all, {20}, 4), {2}, 3).equal(all.narrow(0, 7, 2)));
  EXPECT_EQ(plain_view(all, {0, 3}, 24).numel(), 0);
  EXPECT_THROW(plain_view(all, {25}), Error);
  EXPECT_THROW(plain_view(all, {4}, 21), Error);
  EXPECT_THROW(plain_view(all.view({4, 6}).t(), {24}), Error);

  const at::Tensor cube = all.view({2, 3, 4});
  EXPECT_EQ(row_stride(cube), 4);
  EXPECT_EQ(row_stride(cube.narrow(-1, 1, 2)), 4);
  EXPECT_EQ(row_stride(cube.narrow(-1, 1, 1)), 4);
  EXPECT_EQ(row_stride(cube.narrow(1, 0, 2)), 0);  // rows are not equally far apart
  EXPECT_EQ(row_stride(cube.transpose(1, 2)), 0);
  EXPECT_EQ(row_stride(all[0].expand({2, 3})), 0);
  EXPECT_EQ(row_stride(all), 24);
  EXPECT_EQ(row_stride(all[0]), 0);

  for (const auto dtype : {at::kDouble, at::kFloat, at::kLong, at::kHalf, at::kInt})
    EXPECT_EQ(number_at(all.to(dtype), 3), 3) << dtype;
  EXPECT_EQ(number_at(all.to(at::kBool), 3), 1);
  const at::Tensor half = at::full({}, 0.5f).set_requires_grad(true);
  EXPECT_EQ(in_double(half).item<double>(), 0.5);
  EXPECT_EQ(in_double(half).scalar_type(), at::kDouble);
  EXPECT_FALSE(in_double(half).requires_grad());
  EXPECT_EQ(in_double(at::ones({3})).sizes(), at::IntArrayRef({3}));
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
