#include "strategies/parts/rows/device_row_gather.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "strategies/parts/rows/row_bytes.h"
#include "strategies/parts/rows/row_messages.h"

namespace convoy {

DeviceRowGather::DeviceRowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers)
    : group_(std::move(group)), tables_(std::move(tables)), narrow_(narrow_rows(tables_, group_->size(), numbers)) {}

void DeviceRowGather::visit(const StateVisitor& visit) const {
  visit_left_over(narrow_, tables_, group_->rank(), visit);
}

int64_t DeviceRowGather::number_bytes(size_t table) const {
  return convoy::number_bytes(tables_[table]->value.size(0));
}

int64_t DeviceRowGather::section(size_t table, int64_t rows) const {
  return section_bytes(tables_[table]->value, rows, !narrow_.empty());
}

void DeviceRowGather::run(const std::vector<at::Tensor>& dense) {
  if (tables_.empty()) return;
  at::NoGradGuard no_grad;
  std::vector<TableRows> own;
  for (const ParameterPtr& table : tables_) own.push_back(table->table->touched());
  share_counts(own);
  pack(dense, own);
  const int64_t all = std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  with_room(gathered_, all, packed_.device());
  group_->all_gather_v(gathered_.narrow(0, 0, all), packed_.narrow(0, 0, own_bytes_), bytes_, {"rows", {}})->wait();
  const int64_t fixed = dense_bytes(dense);
  if (!warned_) warned_ = warn_if_more_than_dense(*group_, tables_, all - own_bytes_ - fixed * (group_->size() - 1));

  std::vector<int64_t> begins(bytes_.size(), 0);  // of what is to be read next, by rank
  for (size_t rank = 1; rank < bytes_.size(); ++rank) begins[rank] = begins[rank - 1] + bytes_[rank - 1];
  std::vector<MessagePart> parts;
  for (int64_t& begin : begins) {
    parts.push_back({gathered_, begin});
    begin += fixed;
  }
  sum_dense(dense, parts);
  const auto counts = counts_.accessor<int64_t, 2>();
  for (size_t table = 0; table < tables_.size(); ++table) {
    merge(table, begins);
    for (size_t rank = 0; rank < begins.size(); ++rank)
      begins[rank] += section(table, counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)]);
  }
}

void DeviceRowGather::share_counts(const std::vector<TableRows>& own) {
  const auto tables = static_cast<int64_t>(tables_.size());
  const at::Device device = tables_.front()->value.device();
  at::Tensor mine = at::empty({tables}, at::kLong);
  for (int64_t table = 0; table < tables; ++table) mine[table] = own[static_cast<size_t>(table)].numbers.numel();
  at::Tensor all = at::empty({group_->size(), tables}, at::TensorOptions(at::kLong).device(device));
  group_->all_gather(all, mine.to(device), {"numbers of rows", {}})->wait();
  counts_ = all.cpu();
}

void DeviceRowGather::pack(const std::vector<at::Tensor>& dense, const std::vector<TableRows>& own) {
  bytes_.assign(static_cast<size_t>(group_->size()), dense_bytes(dense));
  const auto counts = counts_.accessor<int64_t, 2>();
  for (size_t rank = 0; rank < bytes_.size(); ++rank)
    for (size_t table = 0; table < tables_.size(); ++table)
      bytes_[rank] += section(table, counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)]);
  own_bytes_ = bytes_[static_cast<size_t>(group_->rank())];
  with_room(packed_, own_bytes_, tables_.front()->value.device());
  int64_t at = 0;
  for (const at::Tensor& one : dense) {
    bytes_as(packed_, at, one.numel(), one.scalar_type()).copy_(one.view({-1}));
    at += padded(bytes_of(one));
  }
  for (size_t table = 0; table < tables_.size(); ++table) {
    const int64_t rows = own[table].numbers.numel();
    numbers_in(packed_, table, at, rows).copy_(own[table].numbers);
    at += padded(rows * number_bytes(table));
    const int64_t bytes = section(table, rows) - padded(rows * number_bytes(table));
    const at::Tensor& values = own[table].values;
    if (narrow_.empty())
      bytes_as(packed_, at, values.numel(), values.scalar_type()).copy_(values.view({-1}));
    else
      narrow_[table].encode(packed_.narrow(0, at, bytes), own[table]);
    at += bytes;
  }
}

at::Tensor DeviceRowGather::numbers_in(const at::Tensor& bytes, size_t table, int64_t begin, int64_t rows) const {
  return bytes_as(bytes, begin, rows, number_bytes(table) == 4 ? at::kInt : at::kLong);
}

at::Tensor DeviceRowGather::values_at(size_t table, int64_t begin, int64_t rows) const {
  const at::Tensor& value = tables_[table]->value;
  const int64_t numbers = padded(rows * number_bytes(table));
  if (!narrow_.empty())
    return narrow_[table].decode(gathered_.narrow(0, begin + numbers, section(table, rows) - numbers), rows);
  return bytes_as(gathered_, begin + numbers, rows * value.size(1), value.scalar_type()).view({rows, value.size(1)});
}

// Ranks one after the other, each of which has a row once: a GPU too adds them in this order.
void DeviceRowGather::merge(size_t table, const std::vector<int64_t>& begins) {
  const at::Tensor& value = tables_[table]->value;
  const auto counts = counts_.accessor<int64_t, 2>();
  std::vector<at::Tensor> numbers, values;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = counts[static_cast<int64_t>(rank)][static_cast<int64_t>(table)];
    numbers.push_back(numbers_in(gathered_, table, begins[rank], rows).to(at::kLong));
    values.push_back(values_at(table, begins[rank], rows));
  }
  const auto [unique, places, times] = at::_unique2(at::cat(numbers), true, true, false);
  at::Tensor total = at::zeros({unique.numel(), value.size(1)}, value.options().requires_grad(false));
  int64_t at = 0;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = numbers[rank].numel();
    total.index_add_(0, places.narrow(0, at, rows), values[rank]);
    at += rows;
  }
  tables_[table]->table->set_update({unique, total});
}

}  // namespace convoy
