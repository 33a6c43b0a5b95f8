// RowIndex: maps each new number to a position 0, 1, … in order of first occurrence. `clear` removes all numbers and
// keeps the memory. One thread.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

// SparseRowBlocks: distribution of a table's rows over several ranks: the owner of each row, and its index among the
// owner's rows.
//
// Blocks of rows are assigned to the ranks round robin. Blocks grow with the row number: one row at first, then at most
// a 32nd of the number. Most vocabularies start with the frequent rows. So those are distributed over all ranks, and
// ranks differ by a few percent of their rows. A checkpoint has a few hundred pieces of a rank's rows.
// Pure arithmetic, without LibTorch; immutable, any thread.
class SparseRowBlocks {
 public:
  // `rows`: rows of the whole table. `rank`: this rank, whose rows are local.
  SparseRowBlocks(int64_t rows, int rank, int ranks);

  int64_t rows() const { return rows_; }  // rows of all ranks
  int64_t local_rows(int rank) const { return row_counts_[size_t(rank)]; }
  int64_t local_rows() const { return local_rows(rank_); }
  int ranks() const { return int(row_counts_.size()); }

  // Return the owner of a row in 0 … rows − 1, and its index among the owner's rows.
  int owner(int64_t row) const { return blocks_[block_of(row)].owner; }
  bool is_local(int64_t row) const { return owner(row) == rank_; }
  int64_t local_index(int64_t row) const { return row + blocks_[block_of(row)].shift; }

  // Rows [first, first + rows) are local rows from `index` on.
  struct Range {
    int64_t first = 0, rows = 0, index = 0;
  };
  std::vector<Range> local_ranges() const;  // ranges of this rank, by index

 private:
  struct Block {
    int32_t owner = 0;
    int64_t shift = 0;  // from a row's number to its local index
  };
  size_t block_of(int64_t row) const;
  int64_t first_of(size_t block) const;

  int64_t rows_;
  int rank_;
  int bits_ = 5;  // the rows per block double after every 2^bits blocks, except after the first 2^bits
  std::vector<Block> blocks_;
  std::vector<int64_t> row_counts_;  // by rank
};

// Numbers up to twice 2^bits are blocks of one row; larger ones share a block if their leading bits are equal.
inline size_t SparseRowBlocks::block_of(int64_t row) const {
  const auto number = uint64_t(row);
  if (number >> bits_ == 0) return number;
  const int shift = 63 - __builtin_clzll(number) - bits_;
  return (size_t(shift) << bits_) + (number >> shift);
}

class RowIndex {
 public:
  RowIndex();
  void clear();
  // Returns the position of `number`, which must not be negative; adds the number if it is new.
  int64_t position(int64_t number);
  // Returns the position of `number`, or −1 if it was not added.
  int64_t find(int64_t number) const {
    const Cell& cell = cells_[cell_of(number)];
    return cell.round == round_ ? cell.position : -1;
  }
  // Prefetches the cell of `number` into the cache.
  void prefetch(int64_t number) const { __builtin_prefetch(&cells_[first_cell(number)]); }
  const std::vector<int64_t>& numbers() const { return numbers_; }  // by position
  int64_t size() const { return int64_t(numbers_.size()); }

 private:
  struct Cell {
    int64_t number = 0;
    uint32_t round = 0;  // number of `clear` calls when it was written; older cells are empty
    int32_t position = 0;
  };
  void grow();
  size_t first_cell(int64_t number) const;
  size_t cell_of(int64_t number) const;

  std::vector<Cell> cells_;  // a power of two, at most half full
  std::vector<int64_t> numbers_;
  uint32_t round_ = 1;
};

// Multiplies by 2⁶⁴ ÷ the golden ratio, so that consecutive numbers get distant cells.
inline size_t RowIndex::first_cell(int64_t number) const {
  const uint64_t mixed = uint64_t(number) * 0x9E3779B97F4A7C15u;
  return size_t(mixed >> 32) & (cells_.size() - 1);
}

inline size_t RowIndex::cell_of(int64_t number) const {
  size_t cell = first_cell(number);
  while (cells_[cell].round == round_ && cells_[cell].number != number) cell = (cell + 1) & (cells_.size() - 1);
  return cell;
}

inline int64_t RowIndex::position(int64_t number) {
  size_t cell = cell_of(number);
  if (cells_[cell].round == round_) return cells_[cell].position;
  if (2 * (numbers_.size() + 1) > cells_.size()) {
    grow();
    cell = cell_of(number);
  }
  cells_[cell] = {number, round_, int32_t(numbers_.size())};
  numbers_.push_back(number);
  return cells_[cell].position;
}

}  // namespace convoy
