// Fills of tensors: shards equal slices of the whole tensor, bit for bit, in every dtype.
#include "core/tensors/random.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace convoy {
namespace {

class RandomFill : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(RandomFill, ShardsEqualRangesOfTheTensor) {
  const int64_t count = 100003;
  for (auto fill : {fill_uniform, fill_normal}) {
    auto whole = at::empty({count}, GetParam());
    fill(whole, 42, 5, -0.5, 2);
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, 64}, {333, 70001}, {70001, count}, {9, 9}}) {
      auto shard = at::empty({end - begin}, GetParam());
      fill(shard, 42, 5 + uint64_t(begin), -0.5, 2);
      EXPECT_TRUE(shard.equal(whole.slice(0, begin, end))) << begin << ".." << end;
    }
  }
}

TEST_P(RandomFill, ElementsAreTheRoundedDraws) {
  auto uniform = at::empty({50, 3}, GetParam()), normal = at::empty({50, 3}, GetParam());
  fill_uniform(uniform, 8, 1, 2, 5);
  fill_normal(normal, 8, 1, 1, 0.25);
  auto expected_uniform = at::empty({150}, at::kDouble), expected_normal = at::empty({150}, at::kDouble);
  for (int64_t i = 0; i < 150; ++i) {
    expected_uniform[i] = 2 + 3 * random_uniform(8, uint64_t(1 + i));
    double normal_draw = 0;
    draw_normal(&normal_draw, 1, 8, uint64_t(1 + i));
    expected_normal[i] = 1 + 0.25 * normal_draw;
  }
  EXPECT_TRUE(uniform.flatten().equal(expected_uniform.to(GetParam())));
  EXPECT_TRUE(normal.flatten().equal(expected_normal.to(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RandomFill, ::testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16));

}  // namespace
}  // namespace convoy
