#include "strategies/parts/rows/row_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace convoy {
namespace {

// Each row has one place at one owner, owners' places have no gaps, and `own` says the same.
TEST(RowBlocks, EveryRowIsHeldOnce) {
  for (const int64_t rows : {0, 1, 31, 32, 64, 65, 1000, 70001})
    for (const int ranks : {1, 2, 3, 7}) {
      std::vector<std::set<int64_t>> places(static_cast<size_t>(ranks));
      const RowBlocks first(rows, 0, ranks);
      for (int64_t row = 0; row < rows; ++row)
        ASSERT_TRUE(places[static_cast<size_t>(first.owner(row))].insert(first.place(row)).second) << row;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& mine = places[static_cast<size_t>(rank)];
        const RowBlocks blocks(rows, rank, ranks);
        ASSERT_EQ(blocks.held(), static_cast<int64_t>(mine.size()));
        if (!mine.empty()) {
          EXPECT_EQ(*mine.begin(), 0);
          EXPECT_EQ(*mine.rbegin(), blocks.held() - 1);
        }
        int64_t next = 0;
        for (const RowBlocks::Stretch& own : blocks.own()) {
          EXPECT_EQ(own.place, next);
          next += own.rows;
          for (int64_t i = 0; i < own.rows; ++i) {
            ASSERT_EQ(blocks.owner(own.first + i), rank);
            ASSERT_EQ(blocks.place(own.first + i), own.place + i);
          }
        }
        EXPECT_EQ(next, blocks.held());
      }
    }
}

// By rows, and by how often rows are asked for where their frequency falls with their number.
TEST(RowBlocks, ShareRowsAndRequestsEvenly) {
  constexpr int64_t rows = 211261;
  for (const int ranks : {2, 3, 8}) {
    const RowBlocks blocks(rows, 0, ranks);
    std::vector<double> asked(static_cast<size_t>(ranks), 0);
    double all = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const double share = 1 / static_cast<double>(row + 10);
      asked[static_cast<size_t>(blocks.owner(row))] += share;
      all += share;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_NEAR(static_cast<double>(blocks.held(rank)) * ranks / rows, 1, 0.08) << rank << " of " << ranks;
      EXPECT_NEAR(asked[static_cast<size_t>(rank)] * ranks / all, 1, 0.25) << rank << " of " << ranks;
    }
  }
}

TEST(RowBlocks, PiecesAreSomeHundred) {
  EXPECT_LE(RowBlocks(20'000'000, 0, 2).own().size(), 400u);
  EXPECT_EQ(RowBlocks(20'000'000, 0, 1).own().size(), 1u);
}

}  // namespace
}  // namespace convoy
