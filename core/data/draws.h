// Draws: the rows of a split that a MemberDraw reads, and those that its fold holds out. Any of them is computed alone, so that
// resuming is arithmetic and ten members cost no tables. Pure, copyable, thread-safe.
#pragma once
#include <cstdint>
#include <optional>

#include "core/data/permutation.h"
#include "core/member_draw.h"

namespace convoy {

class Draws {
 public:
  // Error(config) when folds are more than `rows`.
  Draws(const MemberDraw& draw, int64_t rows);

  int64_t size() const { return size_; }  // rows_drawn
  int64_t rows() const { return rows_; }  // drawn from
  int64_t at(int64_t position) const;     // the row at a position, 0 … size()−1; a bootstrap repeats some
  // In place: positions become rows.
  void map(int64_t* positions, int64_t count) const;

  int64_t held_out() const { return held_end_ - held_begin_; }  // rows of the fold that is held out; 0 without folds
  void map_held_out(int64_t* positions, int64_t count) const;   // in place: 0 … held_out()−1 become rows

 private:
  MemberDraw::Rows kind_;
  int64_t rows_;
  int64_t size_;
  int64_t held_begin_ = 0, held_end_ = 0;  // positions of the partition
  uint64_t key_;                           // bootstrap
  Permutation order_;                      // subset and folds
};

// How many of the first `rows` rows of a split to draw from, so that an epoch ends within `steps` steps with a smaller global
// batch that `shares` parts cannot share equally, each with a row at least; none where no number does that.
std::optional<int64_t> ragged_rows(const MemberDraw& draw, int64_t rows, int64_t global_rows, int64_t steps,
                                   int64_t shares);

}  // namespace convoy
