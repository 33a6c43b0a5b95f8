#include "strategies/parts/rows/row_sums.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>

namespace convoy {
namespace {

constexpr int64_t ahead = 8;  // rows whose cells are asked for before they are needed

// sums[place of numbers[i]] = or += from[i]
template <class T, class Number>
void add_rows(RowIndex& index, const RowBlocks* updaters, T* sums, const T* from, const Number* numbers, int64_t n,
              int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) index.prefetch(numbers[i + ahead]);
    if (updaters != nullptr && !updaters->own(numbers[i])) continue;
    const int64_t known = index.size(), place = index.place(numbers[i]);
    T* __restrict to = sums + place * width;
    const T* __restrict row = from + i * width;
    if (place == known)
      std::memcpy(to, row, sizeof(T) * static_cast<size_t>(width));
    else
      for (int64_t k = 0; k < width; ++k) to[k] += row[k];
  }
}

}  // namespace

void RowSums::begin(int64_t most, const at::Tensor& value, const RowBlocks* updaters) {
  updaters_ = updaters;
  index_.clear();
  if (values_.defined() && values_.size(0) >= most) return;
  const int64_t room = most + most / 2;
  values_ = at::empty({room, value.size(1)}, value.options().requires_grad(false));
  numbers_ = at::empty({room}, at::kLong);
}

template <class Number>
void RowSums::add_any(const Number* numbers, const char* values, int64_t n) {
  if (n == 0) return;
  const int64_t width = values_.size(1);
  // The first rank's are all new.
  if (index_.size() == 0 && updaters_ == nullptr) {
    for (int64_t i = 0; i < n; ++i) index_.place(numbers[i]);
    std::memcpy(values_.mutable_data_ptr(), values, static_cast<size_t>(n * width * values_.element_size()));
    return;
  }
  AT_DISPATCH_FLOATING_TYPES(values_.scalar_type(), "row_sums", [&] {
    add_rows(index_, updaters_, values_.mutable_data_ptr<scalar_t>(), reinterpret_cast<const scalar_t*>(values),
             numbers, n, width);
  });
}

void RowSums::add(const int32_t* numbers, const char* values, int64_t n) { add_any(numbers, values, n); }

void RowSums::add(const int64_t* numbers, const char* values, int64_t n) { add_any(numbers, values, n); }

TableRows RowSums::rows() {
  const int64_t n = index_.size();
  if (n > 0)
    std::memcpy(numbers_.mutable_data_ptr<int64_t>(), index_.numbers().data(),
                sizeof(int64_t) * static_cast<size_t>(n));
  return {numbers_.narrow(0, 0, n), values_.narrow(0, 0, n)};
}

}  // namespace convoy
