// Philox's published values, draws compared with their definition by libm, and distributions.
#include "core/base/random_keys.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace convoy {
namespace {

double random_normal(uint64_t key, uint64_t index) {
  double value = 0;
  draw_normal(&value, 1, key, index);
  return value;
}

// From the paper's reference implementation (Random123, kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomDraws, BlocksEqualSingleDrawsFromAnyStart) {
  for (uint64_t first : {0ull, 1ull, 7ull, (1ull << 33) - 3}) {
    std::vector<double> uniform(301), normal(301);
    draw_uniform(uniform.data(), 301, 9, first);
    draw_normal(normal.data(), 301, 9, first);
    for (uint64_t i = 0; i < 301; ++i) {
      EXPECT_EQ(uniform[i], random_uniform(9, first + i));
      EXPECT_EQ(normal[i], random_normal(9, first + i));
    }
  }
}

TEST(RandomDraws, NormalIsBoxMullerOfTheUniformPair) {
  const double pi = std::acos(-1.0);
  for (uint64_t i = 0; i < 20000; i += 2) {
    const double a = random_uniform(3, i), b = random_uniform(3, i + 1), radius = std::sqrt(-2 * std::log1p(-a));
    EXPECT_NEAR(random_normal(3, i), radius * std::cos(2 * pi * b), 1e-14);
    EXPECT_NEAR(random_normal(3, i + 1), radius * std::sin(2 * pi * b), 1e-14);
  }
}

TEST(RandomDraws, HaveTheRightMoments) {
  const int64_t count = 1 << 20;
  std::vector<double> draws(count);
  const auto moment = [&](int power) {
    double sum = 0;
    for (double x : draws) sum += std::pow(x, power);
    return sum / count;
  };
  draw_uniform(draws.data(), count, random_key(1, "uniform"), 0);
  for (double x : draws) ASSERT_TRUE(x >= 0 && x < 1);
  EXPECT_NEAR(moment(1), 1 / 2.0, 0.002);
  EXPECT_NEAR(moment(2), 1 / 3.0, 0.002);
  draw_normal(draws.data(), count, random_key(1, "normal"), 0);
  EXPECT_NEAR(moment(1), 0, 0.005);
  EXPECT_NEAR(moment(2), 1, 0.007);
  EXPECT_NEAR(moment(3), 0, 0.02);
  EXPECT_NEAR(moment(4), 3, 0.05);
}

TEST(RandomBelow, IsUniformBelowItsBound) {
  std::vector<int> counts(7);
  for (uint64_t i = 0; i < 70000; ++i) {
    const uint64_t drawn = random_below(11, i, 7);
    ASSERT_LT(drawn, 7u);
    ++counts[drawn];
  }
  for (int count : counts) EXPECT_NEAR(count, 10000, 400);  // four standard deviations
  EXPECT_EQ(random_below(1, 2, 0), 0u);
}

TEST(RandomKey, DependsOnEveryPart) {
  std::set<uint64_t> keys;
  for (uint64_t seed : {0, 1}) {
    for (const char* name : {"", "a", "b", "ab", "ba", "blocks.0.weight", "blocks.1.weight"}) {
      for (uint64_t a : {0, 1, 2}) {
        for (uint64_t b : {0, 1, 2}) keys.insert(random_key(seed, name, a, b));
      }
    }
  }
  EXPECT_EQ(keys.size(), 2u * 7 * 9);
  EXPECT_EQ(random_key(1, "blocks.0.weight"), random_key(1, "blocks.0.weight", 0, 0));
}

}  // namespace
}  // namespace convoy
