#include "core/data/values_per_id.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace convoy {

ValuesPerId::ValuesPerId(size_t columns) : columns_(columns), watched_(columns) {
  std::iota(watched_.begin(), watched_.end(), size_t(0));
}

size_t ValuesPerId::add(int32_t id, const float* row, int64_t line) {
  if (watched_.empty()) return columns_;
  const size_t at = size_t(id) * columns_;
  if (at == values_.size()) {
    values_.insert(values_.end(), row, row + columns_);
    lines_.push_back(line);
    return columns_;
  }
  const float* first = values_.data() + at;
  size_t differs = columns_;
  for (size_t column : watched_)
    if (first[column] != row[column]) {
      differs = column;
      break;
    }
  if (differs == columns_) return columns_;
  watched_.erase(std::remove_if(watched_.begin(), watched_.end(), [&](size_t c) { return first[c] != row[c]; }),
                 watched_.end());
  if (watched_.empty()) drop();
  return differs;
}

bool ValuesPerId::merge(const ValuesPerId& part, const std::vector<int32_t>& numbers) {
  const size_t before = watched_.size();
  watched_.erase(std::remove_if(watched_.begin(), watched_.end(),
                                [&](size_t column) {
                                  return !std::binary_search(part.watched_.begin(), part.watched_.end(), column);
                                }),
                 watched_.end());
  if (watched_.empty()) drop();
  for (size_t i = 0; i < numbers.size() && !watched_.empty(); ++i)
    add(numbers[i], part.values_.data() + i * columns_, part.lines_[i]);
  return watched_.size() == before;
}

bool ValuesPerId::same_for_all(size_t column) const {
  for (size_t at = column; at < values_.size(); at += columns_)
    if (values_[at] != values_[column]) return false;
  return true;
}

at::Tensor ValuesPerId::values() const {
  at::Tensor table = at::empty({int64_t(lines_.size()), int64_t(columns_)}, at::kFloat);
  std::copy(values_.begin(), values_.end(), table.mutable_data_ptr<float>());
  return table;
}

void ValuesPerId::drop() {
  values_ = {};
  lines_ = {};
}

}  // namespace convoy
