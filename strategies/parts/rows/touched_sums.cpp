#include "strategies/parts/rows/touched_sums.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>

namespace convoy {
namespace {

constexpr int64_t ahead = 8;  // rows whose cells are asked for before they are needed

// Which of the ranks that have touched a row updates it; any function that all of them agree on and that is even.
int32_t chosen_of(int64_t number, int32_t ranks) {
  return static_cast<int32_t>((static_cast<uint64_t>(number) * 0x9E3779B97F4A7C15u >> 40) %
                              static_cast<uint64_t>(ranks));
}

}  // namespace

void TouchedSums::begin(const RowIndex& own, int rank, int ranks, const at::Tensor& value) {
  own_ = &own;
  rank_ = rank;
  chosen_ = false;
  count_ = 0;
  told_.resize(static_cast<size_t>(ranks));
  const auto n = static_cast<size_t>(own.size());
  before_.assign(n, 0);
  all_.assign(n, 1);
  if (values_.defined() && values_.size(0) > own.size()) return;
  const int64_t room = own.size() + own.size() / 2 + 1;
  values_ = at::empty({room, value.size(1)}, value.options().requires_grad(false));
  numbers_ = at::empty({room}, at::kLong);
}

template <class Number>
void TouchedSums::tell_any(int rank, const Number* numbers, int64_t n) {
  std::vector<int32_t>& places = told_[static_cast<size_t>(rank)];
  places.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) own_->prefetch(numbers[i + ahead]);
    const int64_t place = own_->known(numbers[i]);
    places[static_cast<size_t>(i)] = static_cast<int32_t>(place);
    if (place < 0) continue;
    ++all_[static_cast<size_t>(place)];
    if (rank < rank_) ++before_[static_cast<size_t>(place)];
  }
}

void TouchedSums::tell(int rank, const int32_t* numbers, int64_t n) { tell_any(rank, numbers, n); }

void TouchedSums::tell(int rank, const int64_t* numbers, int64_t n) { tell_any(rank, numbers, n); }

void TouchedSums::choose() {
  const std::vector<int64_t>& numbers = own_->numbers();
  sums_at_.assign(numbers.size(), -1);
  std::vector<int32_t>& mine = told_[static_cast<size_t>(rank_)];
  mine.resize(numbers.size());
  auto* const to = numbers_.mutable_data_ptr<int64_t>();
  for (size_t place = 0; place < numbers.size(); ++place) {
    mine[place] = static_cast<int32_t>(place);
    if (all_[place] > 1 && chosen_of(numbers[place], all_[place]) != before_[place]) continue;
    sums_at_[place] = static_cast<int32_t>(count_);
    to[count_++] = numbers[place];
  }
  begun_.assign(static_cast<size_t>(count_), 0);
  chosen_ = true;
}

void TouchedSums::add(int rank, const char* values, int64_t n) {
  if (!chosen_) choose();
  if (n == 0) return;
  AT_DISPATCH_FLOATING_TYPES(values_.scalar_type(), "touched_sums", [&] {
    add_rows(told_[static_cast<size_t>(rank)].data(), reinterpret_cast<const scalar_t*>(values), n);
  });
}

template <class T>
void TouchedSums::add_rows(const int32_t* places, const T* from, int64_t n) {
  const int64_t width = values_.size(1);
  T* const sums = values_.mutable_data_ptr<T>();
  for (int64_t i = 0; i < n; ++i) {
    const int32_t sum = places[i] < 0 ? -1 : sums_at_[static_cast<size_t>(places[i])];
    if (sum < 0) continue;
    T* __restrict to = sums + sum * width;
    const T* __restrict row = from + i * width;
    char& begun = begun_[static_cast<size_t>(sum)];
    if (begun == 0)
      std::memcpy(to, row, sizeof(T) * static_cast<size_t>(width));
    else
      for (int64_t k = 0; k < width; ++k) to[k] += row[k];
    begun = 1;
  }
}

TableRows TouchedSums::rows() {
  if (!chosen_) choose();
  return {numbers_.narrow(0, 0, count_), values_.narrow(0, 0, count_)};
}

}  // namespace convoy
