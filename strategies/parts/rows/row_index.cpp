#include "strategies/parts/rows/row_index.h"

namespace convoy {
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
  for (size_t place = 0; place < numbers_.size(); ++place)
    cells_[cell_of(numbers_[place])] = {numbers_[place], round_, static_cast<int32_t>(place)};
}

}  // namespace convoy
