// How one member of an ensemble draws its rows of the training split. Plain data, without LibTorch.
//
// Which rows, and in which order, are functions of these values, the epoch and the number of rows alone: a member reads the
// same wherever it is trained, and one that takes all rows reads what a training by itself with its seed would.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace convoy {

struct MemberDraw {
  enum class Rows { all, bootstrap, subset, fold } rows = Rows::all;
  int64_t member = 0;   // its number in the ensemble
  uint64_t seed = 1;    // of its order and its draws
  double fraction = 1;  // subset: of all rows, drawn once without replacement
  int64_t folds = 0;    // fold: all rows but those of part `member` mod `folds`, the same parts whatever the seed
};

inline bool operator==(const MemberDraw& a, const MemberDraw& b) {
  return a.rows == b.rows && a.member == b.member && a.seed == b.seed && a.fraction == b.fraction && a.folds == b.folds;
}

// Rows that a member reads in an epoch, of `rows` in all; the same for all members. Parts are equal; the few rows that
// `folds` does not divide are in none, and so read by all.
inline int64_t rows_drawn(const MemberDraw& draw, int64_t rows) {
  switch (draw.rows) {
    case MemberDraw::Rows::subset:
      return std::min(rows, std::max<int64_t>(1, std::llround(draw.fraction * static_cast<double>(rows))));
    case MemberDraw::Rows::fold:
      return rows - rows / draw.folds;
    default:
      return rows;
  }
}

}  // namespace convoy
