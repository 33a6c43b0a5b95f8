#include "strategies/sparse/exchange/row_index.h"

#include <gtest/gtest.h>

#include <map>

#include "core/base/random_keys.h"

namespace convoy {
namespace {

TEST(RowIndex, NumbersIdsByFirstAppearance) {
  RowIndex index;
  EXPECT_EQ(index.position(7), 0);
  EXPECT_EQ(index.position(3), 1);
  EXPECT_EQ(index.position(7), 0);
  EXPECT_EQ(index.position(0), 2);
  EXPECT_EQ(index.numbers(), (std::vector<int64_t>{7, 3, 0}));
  index.clear();
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.position(3), 0);
}

// More numbers than its first capacity, many of them equal or consecutive, in several rounds.
TEST(RowIndex, EqualsAMap) {
  RowIndex index;
  for (uint64_t round = 0; round < 4; ++round) {
    index.clear();
    std::map<int64_t, int64_t> known;
    for (uint64_t i = 0; i < 20000; ++i) {
      const int64_t far = i % 2 == 0 ? 0 : int64_t{1} << 40;
      const auto number = far + static_cast<int64_t>(random_below(round, i, i % 3 == 0 ? 50 : 100000));
      const auto expected = known.emplace(number, static_cast<int64_t>(known.size())).first->second;
      ASSERT_EQ(index.position(number), expected) << "round " << round << ", number " << i;
    }
    EXPECT_EQ(index.size(), static_cast<int64_t>(known.size()));
  }
}

}  // namespace
}  // namespace convoy
