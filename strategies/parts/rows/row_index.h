// RowIndex: gives each number that it is told a place, 0, 1, … in the order in which numbers first came. Forgets all of them
// at once, and keeps its memory for the next ones. One thread.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

class RowIndex {
 public:
  RowIndex();
  void clear();
  // Place of `number`, which is not negative.
  int64_t place(int64_t number);
  // −1: it was not told.
  int64_t known(int64_t number) const {
    const Cell& cell = cells_[cell_of(number)];
    return cell.round == round_ ? cell.place : -1;
  }
  // Soon it will be asked for.
  void prefetch(int64_t number) const { __builtin_prefetch(&cells_[first_cell(number)]); }
  const std::vector<int64_t>& numbers() const { return numbers_; }  // by place
  int64_t size() const { return static_cast<int64_t>(numbers_.size()); }

 private:
  struct Cell {
    int64_t number = 0;
    uint32_t round = 0;  // of those between two clears; older ones are empty
    int32_t place = 0;
  };
  void grow();
  size_t first_cell(int64_t number) const;
  size_t cell_of(int64_t number) const;

  std::vector<Cell> cells_;  // a power of two, at most half full
  std::vector<int64_t> numbers_;
  uint32_t round_ = 1;
};

// Multiplied by 2⁶⁴ ÷ the golden ratio: numbers that follow each other lie far apart.
inline size_t RowIndex::first_cell(int64_t number) const {
  const uint64_t mixed = static_cast<uint64_t>(number) * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(mixed >> 32) & (cells_.size() - 1);
}

inline size_t RowIndex::cell_of(int64_t number) const {
  size_t cell = first_cell(number);
  while (cells_[cell].round == round_ && cells_[cell].number != number) cell = (cell + 1) & (cells_.size() - 1);
  return cell;
}

inline int64_t RowIndex::place(int64_t number) {
  size_t cell = cell_of(number);
  if (cells_[cell].round == round_) return cells_[cell].place;
  if (2 * (numbers_.size() + 1) > cells_.size()) {
    grow();
    cell = cell_of(number);
  }
  cells_[cell] = {number, round_, static_cast<int32_t>(numbers_.size())};
  numbers_.push_back(number);
  return cells_[cell].place;
}

}  // namespace convoy
