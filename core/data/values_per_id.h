// ValuesPerId: the values that columns of a file have for each id. The first row of an id gives them, later rows
// are compared.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace convoy {

class ValuesPerId {
 public:
  explicit ValuesPerId(size_t columns);

  // A row of the id; an id that is new has the next number, from 0. Returns the first column that differs from the
  // id's first row, else the number of columns. A column that differs for any id is not watched any more.
  size_t add(int32_t id, const float* row, int64_t line);
  // Rows of another part of the file: its id i is numbers[i] here. False when a column differs.
  bool merge(const ValuesPerId& part, const std::vector<int32_t>& numbers);

  const std::vector<size_t>& watched() const { return watched_; }  // columns with one value per id, in order
  // From the id's first row; valid while any column is watched.
  float value(int32_t id, size_t column) const { return values_[size_t(id) * columns_ + column]; }
  int64_t line(int32_t id) const { return lines_[size_t(id)]; }
  bool same_for_all(size_t column) const;  // of a watched column
  at::Tensor values() const;               // float32 [ids, columns]

 private:
  void drop();  // no column is watched

  size_t columns_;
  std::vector<size_t> watched_;
  std::vector<float> values_;
  std::vector<int64_t> lines_;
};

}  // namespace convoy
