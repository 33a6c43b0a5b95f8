// The order of an epoch, and its independence of the number of readers.
#include "core/data/sampler.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace convoy {
namespace {

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

TEST(Sampler, EachEpochHasEveryRowOnce) {
  for (int64_t rows : {1, 2, 3, 5, 64, 65, 1000, 4097}) {
    for (int64_t epoch : {0, 1, 7}) {
      const Sampler sampler(rows, 10, 3);
      std::vector<int64_t> seen;
      for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
        const std::vector<int64_t> batch = values(sampler.indices(epoch * sampler.steps_per_epoch() + step, 0, 1));
        seen.insert(seen.end(), batch.begin(), batch.end());
      }
      ASSERT_EQ(int64_t(seen.size()), rows);
      std::sort(seen.begin(), seen.end());
      for (int64_t row = 0; row < rows; ++row) ASSERT_EQ(seen[size_t(row)], row) << rows << " rows, epoch " << epoch;
    }
  }
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  const Sampler one(1000, 1000, 3), other(1000, 1000, 4);
  EXPECT_FALSE(at::equal(one.indices(0, 0, 1), one.indices(1, 0, 1)));
  EXPECT_FALSE(at::equal(one.indices(0, 0, 1), other.indices(0, 0, 1)));
  EXPECT_TRUE(at::equal(one.indices(5, 0, 1), Sampler(1000, 1000, 3).indices(5, 0, 1)));
}

TEST(Sampler, OrderLooksRandom) {
  // In a random order of 4096 rows, neighbours differ by 1365 on average; in a sequential or strided order they do not.
  const Sampler sampler(4096, 4096, 1);
  const auto order = sampler.indices(0, 0, 1).to(at::kDouble);
  const double apart = (order.slice(0, 1) - order.slice(0, 0, -1)).abs().mean().item<double>();
  EXPECT_NEAR(apart, 4096 / 3.0, 80);
}

TEST(Sampler, GlobalBatchesAreEqualOnOneToFourRanks) {
  const Sampler sampler(1003, 50, 9);
  EXPECT_EQ(sampler.steps_per_epoch(), 21);
  for (int64_t step : {0, 3, 20, 21, 45}) {
    const auto whole = values(sampler.indices(step, 0, 1));
    EXPECT_EQ(int64_t(whole.size()), sampler.rows_of(step));
    for (int64_t count : {2, 3, 4}) {
      std::vector<int64_t> joined;
      for (int64_t index = 0; index < count; ++index) {
        const auto share = values(sampler.indices(step, index, count));
        joined.insert(joined.end(), share.begin(), share.end());
        EXPECT_LE(std::abs(int64_t(share.size()) - int64_t(whole.size()) / count), 1);
      }
      EXPECT_EQ(joined, whole) << count << " ranks, step " << step;
    }
  }
}

TEST(Sampler, TheLastBatchIsSmallerAndNeverEmpty) {
  const Sampler uneven(1003, 50, 9), even(1000, 50, 9);
  EXPECT_EQ(uneven.rows_of(20), 3);
  EXPECT_EQ(uneven.rows_of(21), 50);
  EXPECT_EQ(uneven.epoch_of(20), 0);
  EXPECT_EQ(uneven.epoch_of(21), 1);
  EXPECT_EQ(even.steps_per_epoch(), 20);
  EXPECT_EQ(even.rows_of(19), 50);
  EXPECT_EQ(uneven.indices(20, 3, 4).numel(), 0);  // three rows for four ranks
}

TEST(Sampler, KeepsTheOrderWithoutShuffling) {
  const Sampler sampler(7, 3, 1, false);
  EXPECT_EQ(values(sampler.indices(1, 0, 1)), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(values(sampler.indices(2, 0, 1)), (std::vector<int64_t>{6}));
}

}  // namespace
}  // namespace convoy
