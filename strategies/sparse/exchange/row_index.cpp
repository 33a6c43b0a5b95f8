#include "strategies/sparse/exchange/row_index.h"

#include <algorithm>

#include "core/base/error.h"

namespace convoy {

SparseRowBlocks::SparseRowBlocks(int64_t rows, int rank, int ranks)
    : rows_(rows), rank_(rank), row_counts_(size_t(ranks), 0) {
  CONVOY_CHECK(rows >= 0 && 0 <= rank && rank < ranks, "rows ", rows, " of rank ", rank, " of ", ranks);
  while ((int64_t{1} << bits_) < 16 * int64_t{ranks}) ++bits_;
  for (size_t block = 0; first_of(block) < rows; ++block) {
    const auto owner = int32_t(block % size_t(ranks));
    int64_t& count = row_counts_[size_t(owner)];
    blocks_.push_back({owner, count - first_of(block)});
    count += std::min(first_of(block + 1), rows) - first_of(block);
  }
}

int64_t SparseRowBlocks::first_of(size_t block) const {
  const size_t octave = block >> bits_;
  if (octave == 0) return int64_t(block);
  return int64_t((block - ((octave - 1) << bits_)) << (octave - 1));
}

std::vector<SparseRowBlocks::Range> SparseRowBlocks::local_ranges() const {
  std::vector<Range> all;
  for (size_t block = size_t(rank_); block < blocks_.size(); block += row_counts_.size()) {
    const int64_t first = first_of(block), end = std::min(first_of(block + 1), rows_);
    const Range range{first, end - first, first + blocks_[block].shift};
    // A single rank has all rows in one range.
    if (!all.empty() && all.back().first + all.back().rows == first)
      all.back().rows += range.rows;
    else
      all.push_back(range);
  }
  return all;
}

namespace {
constexpr size_t cells_at_first = 1024;
}

RowIndex::RowIndex() : cells_(cells_at_first) {}

void RowIndex::clear() {
  numbers_.clear();
  if (++round_ != 0) return;
  cells_.assign(cells_.size(), Cell{});
  round_ = 1;
}

void RowIndex::grow() {
  cells_.assign(2 * cells_.size(), Cell{});
  for (size_t position = 0; position < numbers_.size(); ++position)
    cells_[cell_of(numbers_[position])] = {numbers_[position], round_, int32_t(position)};
}

}  // namespace convoy
