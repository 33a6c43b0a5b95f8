// KernelTrace. Without a GPU it records operators of the CPU: the same path through the profiler, clock and lanes.
#include "core/training/trace.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace convoy {
namespace {

constexpr int64_t millisecond = 1000000;

TEST(KernelTrace, HasWhatTheDeviceExecutedOnTheSteadyClock) {
  const at::Tensor a = at::rand({256, 256});
  at::mm(a, a);  // before: not recorded
  const int64_t from = steady_nanoseconds();
  const std::unique_ptr<KernelTrace> trace = KernelTrace::begin(at::kCPU);
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(KernelTrace::begin(at::kCPU), nullptr) << "one per process";
  for (int i = 0; i < 3; ++i) at::mm(a, a);
  const std::vector<TraceSlice> slices = trace->end();
  const int64_t to = steady_nanoseconds();
  const auto products =
      std::count_if(slices.begin(), slices.end(), [](const TraceSlice& slice) { return slice.name == "aten::mm"; });
  EXPECT_EQ(products, 3);
  for (const TraceSlice& slice : slices) {
    EXPECT_FALSE(slice.lane.empty()) << "the rank's own lane";
    EXPECT_GT(slice.to, slice.from);
    EXPECT_GE(slice.from, from - millisecond);
    EXPECT_LE(slice.to, to + millisecond);
  }
}

TEST(KernelTrace, CanBeginAgain) {
  for (int i = 0; i < 2; ++i) {
    const std::unique_ptr<KernelTrace> trace = KernelTrace::begin(at::kCPU);
    ASSERT_NE(trace, nullptr);
    if (i == 1) {
      EXPECT_TRUE(trace->end().empty());
    }
  }
}

}  // namespace
}  // namespace convoy
