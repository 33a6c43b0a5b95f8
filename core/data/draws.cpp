// Bootstrap: draw i is one counter of the generator. Subset: the first of a permutation. Folds: contiguous parts of one.
#include "core/data/draws.h"

#include "core/error.h"

namespace convoy {
namespace {

Permutation order_of(const MemberDraw& draw, int64_t rows) {
  if (draw.rows == MemberDraw::Rows::fold) return Permutation(rows, 0, "folds");  // one partition, whatever the seed
  return Permutation(rows, draw.seed, "subset");
}

}  // namespace

Draws::Draws(const MemberDraw& draw, int64_t rows)
    : kind_(draw.rows),
      rows_(rows),
      size_(rows_drawn(draw, rows)),
      key_(random_key(draw.seed, "bootstrap")),
      order_(order_of(draw, rows)) {
  if (kind_ != MemberDraw::Rows::fold) return;
  if (draw.folds > rows)
    throw Error(Failure::config, str("data.samples: ", draw.folds, " folds of ", rows,
                                     " rows leave some without any; give fewer folds"));
  held_begin_ = draw.member % draw.folds * (rows / draw.folds);
  held_end_ = held_begin_ + rows / draw.folds;
}

int64_t Draws::at(int64_t position) const {
  CONVOY_CHECK(0 <= position && position < size_, "position ", position, " of ", size_, " drawn rows");
  map(&position, 1);
  return position;
}

void Draws::map(int64_t* positions, int64_t count) const {
  switch (kind_) {
    case MemberDraw::Rows::all:
      return;
    case MemberDraw::Rows::bootstrap:
      for (int64_t i = 0; i < count; ++i)
        positions[i] = int64_t(random_below(key_, uint64_t(positions[i]), uint64_t(rows_)));
      return;
    case MemberDraw::Rows::subset:
      for (int64_t i = 0; i < count; ++i) positions[i] = order_.at(positions[i]);
      return;
    case MemberDraw::Rows::fold:
      for (int64_t i = 0; i < count; ++i)
        positions[i] = order_.at(positions[i] < held_begin_ ? positions[i] : positions[i] + held_end_ - held_begin_);
      return;
  }
}

void Draws::map_held_out(int64_t* positions, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) positions[i] = order_.at(held_begin_ + positions[i]);
}

std::optional<int64_t> ragged_rows(const MemberDraw& draw, int64_t rows, int64_t global_rows, int64_t steps,
                                   int64_t shares) {
  const double drawn_of_each = static_cast<double>(rows_drawn(draw, rows)) / static_cast<double>(rows);
  const double most = static_cast<double>(steps) * static_cast<double>(global_rows) / drawn_of_each;
  for (int64_t first = most < static_cast<double>(rows) ? static_cast<int64_t>(most) : rows; first > 0; --first) {
    const int64_t drawn = rows_drawn(draw, first);
    const int64_t last = drawn % global_rows;
    if (drawn < global_rows) break;  // no full batch would be left
    const bool in_time = drawn / global_rows + 1 <= steps;
    if (in_time && last >= std::max<int64_t>(shares, 1) && (shares <= 1 || last % shares != 0)) return first;
  }
  return std::nullopt;
}

}  // namespace convoy
