#include "strategies/sparse/exchange/row_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace convoy {
namespace {

// Each row has one index at one owner, an owner's indices have no gaps, and local_ranges() lists the same rows.
TEST(SparseRowBlocks, EveryRowHasOneOwner) {
  for (const int64_t rows : {0, 1, 31, 32, 64, 65, 1000, 70001})
    for (const int ranks : {1, 2, 3, 7}) {
      std::vector<std::set<int64_t>> places(static_cast<size_t>(ranks));
      const SparseRowBlocks first(rows, 0, ranks);
      for (int64_t row = 0; row < rows; ++row)
        ASSERT_TRUE(places[static_cast<size_t>(first.owner(row))].insert(first.local_index(row)).second) << row;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& mine = places[static_cast<size_t>(rank)];
        const SparseRowBlocks blocks(rows, rank, ranks);
        ASSERT_EQ(blocks.local_rows(), static_cast<int64_t>(mine.size()));
        if (!mine.empty()) {
          EXPECT_EQ(*mine.begin(), 0);
          EXPECT_EQ(*mine.rbegin(), blocks.local_rows() - 1);
        }
        int64_t next = 0;
        for (const SparseRowBlocks::Range& own : blocks.local_ranges()) {
          EXPECT_EQ(own.index, next);
          next += own.rows;
          for (int64_t i = 0; i < own.rows; ++i) {
            ASSERT_EQ(blocks.owner(own.first + i), rank);
            ASSERT_EQ(blocks.local_index(own.first + i), own.index + i);
          }
        }
        EXPECT_EQ(next, blocks.local_rows());
      }
    }
}

// Owners have nearly equal numbers of rows, and of requests if rows with larger numbers are requested less often.
TEST(SparseRowBlocks, ShareRowsAndRequestsEvenly) {
  constexpr int64_t rows = 211261;
  for (const int ranks : {2, 3, 8}) {
    const SparseRowBlocks blocks(rows, 0, ranks);
    std::vector<double> asked(static_cast<size_t>(ranks), 0);
    double all = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const double share = 1 / static_cast<double>(row + 10);
      asked[static_cast<size_t>(blocks.owner(row))] += share;
      all += share;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_NEAR(static_cast<double>(blocks.local_rows(rank)) * ranks / rows, 1, 0.08) << rank << " of " << ranks;
      EXPECT_NEAR(asked[static_cast<size_t>(rank)] * ranks / all, 1, 0.25) << rank << " of " << ranks;
    }
  }
}

TEST(SparseRowBlocks, HaveAFewHundredRanges) {
  EXPECT_LE(SparseRowBlocks(20'000'000, 0, 2).local_ranges().size(), 400u);
  EXPECT_EQ(SparseRowBlocks(20'000'000, 0, 1).local_ranges().size(), 1u);
}

}  // namespace
}  // namespace convoy
