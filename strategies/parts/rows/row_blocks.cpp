#include "strategies/parts/rows/row_blocks.h"

#include <algorithm>

#include "core/error.h"

namespace convoy {

RowBlocks::RowBlocks(int64_t rows, int rank, int ranks)
    : rows_(rows), rank_(rank), held_(static_cast<size_t>(ranks), 0) {
  CONVOY_CHECK(rows >= 0 && 0 <= rank && rank < ranks, "rows ", rows, " of rank ", rank, " of ", ranks);
  while ((int64_t{1} << bits_) < 16 * int64_t{ranks}) ++bits_;
  for (size_t block = 0; first_of(block) < rows; ++block) {
    const auto owner = static_cast<int32_t>(block % static_cast<size_t>(ranks));
    int64_t& count = held_[static_cast<size_t>(owner)];
    blocks_.push_back({owner, count - first_of(block)});
    count += std::min(first_of(block + 1), rows) - first_of(block);
  }
}

int64_t RowBlocks::first_of(size_t block) const {
  const size_t octave = block >> bits_;
  if (octave == 0) return static_cast<int64_t>(block);
  return static_cast<int64_t>((block - ((octave - 1) << bits_)) << (octave - 1));
}

std::vector<RowBlocks::Stretch> RowBlocks::own() const {
  std::vector<Stretch> all;
  for (size_t block = static_cast<size_t>(rank_); block < blocks_.size(); block += held_.size()) {
    const int64_t first = first_of(block), end = std::min(first_of(block + 1), rows_);
    const Stretch stretch{first, end - first, first + blocks_[block].shift};
    // One rank alone has everything in one piece.
    if (!all.empty() && all.back().first + all.back().rows == first)
      all.back().rows += stretch.rows;
    else
      all.push_back(stretch);
  }
  return all;
}

}  // namespace convoy
