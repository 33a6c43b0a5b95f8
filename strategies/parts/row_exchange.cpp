#include "strategies/parts/row_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/log.h"

namespace convoy {
namespace {

int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

at::Tensor& with_room(at::Tensor& buffer, int64_t bytes, at::Device device) {
  if (!buffer.defined() || buffer.numel() < bytes)
    buffer = at::empty({bytes + bytes / 2}, at::TensorOptions(at::kByte).device(device));
  return buffer;
}

// Part of a buffer of bytes as `elements` of another type.
at::Tensor as(const at::Tensor& bytes, int64_t begin, int64_t elements, at::ScalarType dtype) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, begin, elements * size).view(dtype);
}

// merged[places[i]] = or += from[i]
template <class T>
void add_rows(RowIndex& index, T* merged, const T* from, const int64_t* numbers, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t known = index.size(), place = index.place(numbers[i]);
    T* __restrict to = merged + place * width;
    const T* __restrict row = from + i * width;
    if (place == known)
      std::memcpy(to, row, sizeof(T) * static_cast<size_t>(width));
    else
      for (int64_t k = 0; k < width; ++k) to[k] += row[k];
  }
}

}  // namespace

RowExchange::RowExchange(CommunicatorPtr group, std::vector<ParameterPtr> tables)
    : group_(std::move(group)), tables_(std::move(tables)), merged_(tables_.size()) {}

int64_t RowExchange::number_bytes(size_t table) const {
  return tables_[table]->value.size(0) <= std::numeric_limits<int32_t>::max() ? 4 : 8;
}

int64_t RowExchange::section(size_t table, int64_t rows) const {
  const at::Tensor& value = tables_[table]->value;
  return padded(rows * number_bytes(table)) + padded(rows * value.size(1) * static_cast<int64_t>(value.element_size()));
}

void RowExchange::run(const std::vector<at::Tensor>& dense) {
  if (tables_.empty()) return;
  at::NoGradGuard no_grad;
  std::vector<TableRows> own;
  for (const ParameterPtr& table : tables_) own.push_back(table->table->touched());
  share_counts(own);
  pack(dense, own);
  const int64_t all = std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  with_room(gathered_, all, packed_.device());
  group_->all_gather_v(gathered_.narrow(0, 0, all), packed_.narrow(0, 0, own_bytes_), bytes_, {"rows", {}})->wait();
  int64_t fixed = 0;
  for (const at::Tensor& one : dense) fixed += padded(bytes_of(one));
  warn_if_more(all - own_bytes_ - fixed * (group_->size() - 1));

  std::vector<int64_t> begins(bytes_.size(), 0);  // of what is to be read next, by rank
  for (size_t rank = 1; rank < bytes_.size(); ++rank) begins[rank] = begins[rank - 1] + bytes_[rank - 1];
  for (const at::Tensor& one : dense) {
    for (size_t rank = 0; rank < begins.size(); ++rank) {
      const at::Tensor part = as(gathered_, begins[rank], one.numel(), one.scalar_type()).view(one.sizes());
      if (rank == 0)
        one.copy_(part);
      else
        one.add_(part);
      begins[rank] += padded(bytes_of(one));
    }
  }
  const auto counts = counts_.accessor<int64_t, 2>();
  for (size_t table = 0; table < tables_.size(); ++table) {
    if (gathered_.is_cpu())
      merge(table, begins);
    else
      merge_on_device(table, begins);
    for (size_t rank = 0; rank < begins.size(); ++rank)
      begins[rank] += section(table, counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)]);
  }
}

void RowExchange::share_counts(const std::vector<TableRows>& own) {
  const auto tables = static_cast<int64_t>(tables_.size());
  const at::Device device = tables_.front()->value.device();
  at::Tensor mine = at::empty({tables}, at::kLong);
  for (int64_t table = 0; table < tables; ++table) mine[table] = own[static_cast<size_t>(table)].numbers.numel();
  at::Tensor all = at::empty({group_->size(), tables}, at::TensorOptions(at::kLong).device(device));
  group_->all_gather(all, mine.to(device), {"numbers of rows", {}})->wait();
  counts_ = all.cpu();
}

void RowExchange::pack(const std::vector<at::Tensor>& dense, const std::vector<TableRows>& own) {
  int64_t fixed = 0;
  for (const at::Tensor& one : dense) fixed += padded(bytes_of(one));
  bytes_.assign(static_cast<size_t>(group_->size()), fixed);
  const auto counts = counts_.accessor<int64_t, 2>();
  for (size_t rank = 0; rank < bytes_.size(); ++rank)
    for (size_t table = 0; table < tables_.size(); ++table)
      bytes_[rank] += section(table, counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)]);
  own_bytes_ = bytes_[static_cast<size_t>(group_->rank())];
  with_room(packed_, own_bytes_, tables_.front()->value.device());
  int64_t at = 0;
  for (const at::Tensor& one : dense) {
    as(packed_, at, one.numel(), one.scalar_type()).copy_(one.view({-1}));
    at += padded(bytes_of(one));
  }
  for (size_t table = 0; table < tables_.size(); ++table) {
    const int64_t rows = own[table].numbers.numel();
    numbers_in(packed_, table, at, rows).copy_(own[table].numbers);
    at += padded(rows * number_bytes(table));
    const at::Tensor& values = own[table].values;
    as(packed_, at, values.numel(), values.scalar_type()).copy_(values.view({-1}));
    at += padded(bytes_of(values));
  }
}

at::Tensor RowExchange::numbers_in(const at::Tensor& bytes, size_t table, int64_t begin, int64_t rows) const {
  return as(bytes, begin, rows, number_bytes(table) == 4 ? at::kInt : at::kLong);
}

at::Tensor RowExchange::values_at(size_t table, int64_t begin, int64_t rows) const {
  const at::Tensor& value = tables_[table]->value;
  return as(gathered_, begin + padded(rows * number_bytes(table)), rows * value.size(1), value.scalar_type())
      .view({rows, value.size(1)});
}

void RowExchange::merge(size_t table, const std::vector<int64_t>& begins) {
  Merged& merged = merged_[table];
  const at::Tensor& value = tables_[table]->value;
  const auto counts = counts_.accessor<int64_t, 2>();
  int64_t most = 0;
  for (size_t rank = 0; rank < begins.size(); ++rank)
    most += counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)];
  if (!merged.values.defined() || merged.values.size(0) < most) {
    merged.values = at::empty({most + most / 2, value.size(1)}, value.options().requires_grad(false));
    merged.numbers = at::empty({most + most / 2}, at::kLong);
  }
  merged.index.clear();
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)];
    if (rows == 0) continue;
    const at::Tensor numbers = numbers_in(gathered_, table, begins[rank], rows).to(at::kLong);
    const at::Tensor values = values_at(table, begins[rank], rows);
    AT_DISPATCH_FLOATING_TYPES(value.scalar_type(), "row_merge", [&] {
      add_rows(merged.index, merged.values.mutable_data_ptr<scalar_t>(), values.const_data_ptr<scalar_t>(),
               numbers.const_data_ptr<int64_t>(), rows, value.size(1));
    });
  }
  const int64_t n = merged.index.size();
  if (n > 0)
    std::memcpy(merged.numbers.mutable_data_ptr<int64_t>(), merged.index.numbers().data(),
                sizeof(int64_t) * static_cast<size_t>(n));
  tables_[table]->table->set_update({merged.numbers.narrow(0, 0, n), merged.values.narrow(0, 0, n)});
}

// Ranks one after the other, each of which has a row once: a GPU too adds them in this order.
void RowExchange::merge_on_device(size_t table, const std::vector<int64_t>& begins) {
  const at::Tensor& value = tables_[table]->value;
  const auto counts = counts_.accessor<int64_t, 2>();
  std::vector<at::Tensor> numbers, values;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)];
    numbers.push_back(numbers_in(gathered_, table, begins[rank], rows).to(at::kLong));
    values.push_back(values_at(table, begins[rank], rows));
  }
  const auto [unique, places, times] = at::_unique2(at::cat(numbers), true, true, false);
  at::Tensor sums = at::zeros({unique.numel(), value.size(1)}, value.options().requires_grad(false));
  int64_t at = 0;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = numbers[rank].numel();
    sums.index_add_(0, places.narrow(0, at, rows), values[rank]);
    at += rows;
  }
  tables_[table]->table->set_update({unique, sums});
}

void RowExchange::warn_if_more(int64_t received) {
  if (warned_ || group_->rank() != 0 || group_->size() == 1) return;
  double dense = 0;
  for (const ParameterPtr& table : tables_) dense += static_cast<double>(bytes_of(table->value));
  // What one rank takes in of a ring all-reduce.
  dense *= 2.0 * (group_->size() - 1) / group_->size();
  if (static_cast<double>(received) <= dense) return;
  warned_ = true;
  log::warning(convoy::str("row tables: ranks receive ", received,
                           " bytes an update, and gradients of whole tables would "
                           "be ",
                           static_cast<int64_t>(dense), "; take model.rows: false, or auto"));
}

}  // namespace convoy
