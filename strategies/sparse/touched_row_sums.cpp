#include "strategies/sparse/touched_row_sums.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <cstring>

namespace convoy {
namespace {

constexpr int64_t ahead = 8;  // rows between prefetch and use

// sums[position of numbers[i]] = or += from[i]
template <class T, class Number>
void add_rows(RowIndex& index, const SparseRowBlocks* updaters, T* sums, const T* from, const Number* numbers,
              int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) index.prefetch(numbers[i + ahead]);
    if (updaters != nullptr && !updaters->is_local(numbers[i])) continue;
    const int64_t known = index.size(), position = index.position(numbers[i]);
    T* __restrict to = sums + position * width;
    const T* __restrict row = from + i * width;
    if (position == known)
      std::memcpy(to, row, sizeof(T) * size_t(width));
    else
      for (int64_t k = 0; k < width; ++k) to[k] += row[k];
  }
}

}  // namespace

void RowSums::begin(int64_t most, const at::Tensor& value, const SparseRowBlocks* updaters) {
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
  // The first rank's rows are all new.
  if (index_.size() == 0 && updaters_ == nullptr) {
    for (int64_t i = 0; i < n; ++i) index_.position(numbers[i]);
    std::memcpy(values_.mutable_data_ptr(), values, size_t(n * width * values_.element_size()));
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
  if (n > 0) std::memcpy(numbers_.mutable_data_ptr<int64_t>(), index_.numbers().data(), sizeof(int64_t) * size_t(n));
  return {rows_between(numbers_, 0, n), rows_between(values_, 0, n)};
}

namespace {

// Rank that updates a row, among the ranks that touched it. Equal on all ranks, and evenly distributed.
int32_t updater_of(int64_t number, int32_t ranks) {
  return int32_t((uint64_t(number) * 0x9E3779B97F4A7C15u >> 40) % uint64_t(ranks));
}

}  // namespace

void TouchedRowSums::begin(const RowIndex& local, int rank, int ranks, const at::Tensor& value) {
  local_ = &local;
  rank_ = rank;
  chosen_ = false;
  count_ = 0;
  positions_.resize(size_t(ranks));
  const auto n = size_t(local.size());
  before_.assign(n, 0);
  all_.assign(n, 1);
  if (values_.defined() && values_.size(0) > local.size()) return;
  const int64_t room = local.size() + local.size() / 2 + 1;
  values_ = at::empty({room, value.size(1)}, value.options().requires_grad(false));
  numbers_ = at::empty({room}, at::kLong);
}

template <class Number>
void TouchedRowSums::set_any_numbers(int rank, const Number* numbers, int64_t n) {
  std::vector<int32_t>& positions = positions_[size_t(rank)];
  positions.resize(size_t(n));
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) local_->prefetch(numbers[i + ahead]);
    const int64_t position = local_->find(numbers[i]);
    positions[size_t(i)] = int32_t(position);
    if (position < 0) continue;
    ++all_[size_t(position)];
    if (rank < rank_) ++before_[size_t(position)];
  }
}

void TouchedRowSums::set_numbers(int rank, const int32_t* numbers, int64_t n) { set_any_numbers(rank, numbers, n); }

void TouchedRowSums::set_numbers(int rank, const int64_t* numbers, int64_t n) { set_any_numbers(rank, numbers, n); }

void TouchedRowSums::choose_rows() {
  const std::vector<int64_t>& numbers = local_->numbers();
  sums_at_.assign(numbers.size(), -1);
  std::vector<int32_t>& mine = positions_[size_t(rank_)];
  mine.resize(numbers.size());
  auto* const to = numbers_.mutable_data_ptr<int64_t>();
  for (size_t position = 0; position < numbers.size(); ++position) {
    mine[position] = int32_t(position);
    if (all_[position] > 1 && updater_of(numbers[position], all_[position]) != before_[position]) continue;
    sums_at_[position] = int32_t(count_);
    to[count_++] = numbers[position];
  }
  begun_.assign(size_t(count_), 0);
  chosen_ = true;
}

void TouchedRowSums::add(int rank, const char* values, int64_t n) {
  if (!chosen_) choose_rows();
  if (n == 0) return;
  AT_DISPATCH_FLOATING_TYPES(values_.scalar_type(), "touched_sums", [&] {
    add_rows(positions_[size_t(rank)].data(), reinterpret_cast<const scalar_t*>(values), n);
  });
}

template <class T>
void TouchedRowSums::add_rows(const int32_t* positions, const T* from, int64_t n) {
  const int64_t width = values_.size(1);
  T* const sums = values_.mutable_data_ptr<T>();
  for (int64_t i = 0; i < n; ++i) {
    const int32_t sum = positions[i] < 0 ? -1 : sums_at_[size_t(positions[i])];
    if (sum < 0) continue;
    T* __restrict to = sums + sum * width;
    const T* __restrict row = from + i * width;
    char& begun = begun_[size_t(sum)];
    if (begun == 0)
      std::memcpy(to, row, sizeof(T) * size_t(width));
    else
      for (int64_t k = 0; k < width; ++k) to[k] += row[k];
    begun = 1;
  }
}

TableRows TouchedRowSums::rows() {
  if (!chosen_) choose_rows();
  return {rows_between(numbers_, 0, count_), rows_between(values_, 0, count_)};
}

}  // namespace convoy
