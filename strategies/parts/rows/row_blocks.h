// RowBlocks: which rank holds which rows of a table that is dealt out to several, and where among its own.
//
// Rows go to ranks in turn by blocks, and a block is the larger the further behind it lies: one row at first, then a 32nd of
// its own number or less. So the frequent rows, which come first in most vocabularies, are spread over all ranks, each rank
// has as many rows as the others but for a few in a hundred, and a checkpoint shows a rank's share in some hundred pieces.
// Pure arithmetic, without LibTorch; immutable, any thread.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

class RowBlocks {
 public:
  // Of a table of `rows`, seen from `rank` of `ranks`.
  RowBlocks(int64_t rows, int rank, int ranks);

  int64_t rows() const { return rows_; }  // of all ranks
  int64_t held(int rank) const { return held_[static_cast<size_t>(rank)]; }
  int64_t held() const { return held(rank_); }
  int ranks() const { return static_cast<int>(held_.size()); }

  // Of row 0 … rows − 1: who holds it, as which of its own rows.
  int owner(int64_t row) const { return blocks_[block_of(row)].owner; }
  bool own(int64_t row) const { return owner(row) == rank_; }
  int64_t place(int64_t row) const { return row + blocks_[block_of(row)].shift; }

  // Rows [first, first + rows) lie from `place` on.
  struct Stretch {
    int64_t first = 0, rows = 0, place = 0;
  };
  std::vector<Stretch> own() const;  // of this rank, by place

 private:
  struct Block {
    int32_t owner = 0;
    int64_t shift = 0;  // from a row's number to its place
  };
  size_t block_of(int64_t row) const;
  int64_t first_of(size_t block) const;

  int64_t rows_;
  int rank_;
  int bits_ = 5;  // 2^bits blocks until a block has twice as many rows
  std::vector<Block> blocks_;
  std::vector<int64_t> held_;  // by rank
};

// Numbers up to twice 2^bits are blocks of their own; from there on a block is what has the same leading bits.
inline size_t RowBlocks::block_of(int64_t row) const {
  const auto number = static_cast<uint64_t>(row);
  if (number >> bits_ == 0) return number;
  const int shift = 63 - __builtin_clzll(number) - bits_;
  return (static_cast<size_t>(shift) << bits_) + (number >> shift);
}

}  // namespace convoy
