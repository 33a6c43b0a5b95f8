#include "strategies/sparse/touched_row_sums.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <cstring>
#include <utility>

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

constexpr uint64_t spread = 0x9E3779B97F4A7C15u;  // 2⁶⁴ ÷ the golden ratio

// Rank that updates a row, among the ranks that touched it. Equal on all ranks, and evenly distributed.
int32_t updater_of(int64_t number, int32_t ranks) {
  return int32_t((uint64_t(number) * spread >> 40) % uint64_t(ranks));
}

}  // namespace

void TouchedRowSums::begin(const RowIndex& local, int rank, int ranks, at::Tensor gradients) {
  local_ = &local;
  rank_ = rank;
  gradients_ = std::move(gradients);
  found_.resize(size_t(ranks));
  for (auto& list : found_) list.clear();
  shared_.clear();
  chosen_ = false;
  const auto n = size_t(local.size());
  before_.assign(n, 0);
  all_.assign(n, 1);
  // 16 bits for each number, so that most numbers of other ranks are found absent in a few kilobytes.
  int bits = 6;
  while ((size_t{1} << bits) < 16 * n) ++bits;
  shift_ = 64 - bits;
  filter_.assign((size_t{1} << bits) / 64, 0);
  for (const int64_t number : local.numbers()) {
    const uint64_t bit = uint64_t(number) * spread >> shift_;
    filter_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
}

template <class Number>
void TouchedRowSums::set_any_numbers(int rank, const Number* numbers, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t bit = uint64_t(int64_t(numbers[i])) * spread >> shift_;
    if ((filter_[bit / 64] >> (bit % 64) & 1) == 0) continue;
    const int64_t position = local_->find(numbers[i]);
    if (position < 0) continue;
    found_[size_t(rank)].push_back({i, position});
    if (all_[size_t(position)]++ == 1) shared_.push_back(position);
    if (rank < rank_) ++before_[size_t(position)];
  }
}

void TouchedRowSums::set_numbers(int rank, const int32_t* numbers, int64_t n) { set_any_numbers(rank, numbers, n); }

void TouchedRowSums::set_numbers(int rank, const int64_t* numbers, int64_t n) { set_any_numbers(rank, numbers, n); }

void TouchedRowSums::choose_rows() {
  chosen_ = true;
  summed_at_.assign(all_.size(), -1);
  summed_.clear();
  others_.clear();
  std::sort(shared_.begin(), shared_.end());
  for (const int64_t position : shared_) {
    const int32_t touching = all_[size_t(position)];
    if (updater_of(local_->numbers()[size_t(position)], touching) != before_[size_t(position)]) {
      others_.push_back(position);
      continue;
    }
    summed_at_[size_t(position)] = int32_t(summed_.size());
    summed_.push_back(position);
  }
  begun_.assign(summed_.size(), 0);
  const int64_t row = gradients_.size(1) * int64_t(gradients_.element_size());
  local_gradients_.resize(summed_.size() * size_t(row));
  const char* const from = static_cast<const char*>(gradients_.const_data_ptr());
  for (size_t k = 0; k < summed_.size(); ++k)
    std::memcpy(local_gradients_.data() + k * size_t(row), from + summed_[k] * row, size_t(row));
}

void TouchedRowSums::add(int rank, const char* values) {
  if (!chosen_) choose_rows();
  if (summed_.empty()) return;
  const int64_t width = gradients_.size(1);
  AT_DISPATCH_FLOATING_TYPES(gradients_.scalar_type(), "touched_sums", [&] {
    scalar_t* const sums = gradients_.mutable_data_ptr<scalar_t>();
    const auto add_row = [&](int64_t position, const scalar_t* __restrict row) {
      scalar_t* __restrict to = sums + position * width;
      char& begun = begun_[size_t(summed_at_[size_t(position)])];
      if (begun == 0)
        std::memcpy(to, row, sizeof(scalar_t) * size_t(width));
      else
        for (int64_t k = 0; k < width; ++k) to[k] += row[k];
      begun = 1;
    };
    if (rank == rank_) {
      for (size_t k = 0; k < summed_.size(); ++k)
        add_row(summed_[k], reinterpret_cast<const scalar_t*>(local_gradients_.data()) + int64_t(k) * width);
      return;
    }
    for (const Found& found : found_[size_t(rank)])
      if (summed_at_[size_t(found.position)] >= 0)
        add_row(found.position, reinterpret_cast<const scalar_t*>(values) + found.index * width);
  });
}

TableRows TouchedRowSums::rows() {
  if (!chosen_) choose_rows();
  const std::vector<int64_t>& numbers = local_->numbers();
  const auto n = int64_t(numbers.size()), count = n - int64_t(others_.size());
  if (!numbers_.defined() || numbers_.numel() < n) numbers_ = at::empty({n + n / 2}, at::kLong);
  auto* const to = numbers_.mutable_data_ptr<int64_t>();
  std::copy(numbers.begin(), numbers.end(), to);
  // The last rows take the places of rows that other ranks update.
  char* const values = static_cast<char*>(gradients_.mutable_data_ptr());
  const int64_t row = gradients_.size(1) * int64_t(gradients_.element_size());
  int64_t last = n - 1;
  auto left_out = others_.rbegin();
  for (const int64_t place : others_) {
    if (place >= count) break;
    while (left_out != others_.rend() && *left_out == last) {
      --last;
      ++left_out;
    }
    std::memcpy(values + place * row, values + last * row, size_t(row));
    to[place] = to[last--];
  }
  return {rows_between(numbers_, 0, count), rows_between(gradients_, 0, count)};
}

}  // namespace convoy
