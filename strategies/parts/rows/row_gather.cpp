#include "strategies/parts/rows/row_gather.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "strategies/parts/rows/host_rows.h"
#include "strategies/parts/rows/row_bytes.h"

namespace convoy {
namespace {

char* data_of(const at::Tensor& bytes) { return static_cast<char*>(bytes.mutable_data_ptr()); }

int64_t sum(const std::vector<int64_t>& list) { return std::accumulate(list.begin(), list.end(), int64_t{0}); }

}  // namespace

RowGather::RowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers)
    : group_(std::move(group)),
      ranks_(static_cast<size_t>(group_->size())),
      tables_(std::move(tables)),
      sums_(tables_.size()),
      narrow_(narrow_rows(tables_, group_->size(), numbers)),
      lengths_(ranks_),
      messages_(ranks_) {}

void RowGather::visit(const StateVisitor& visit) const { visit_left_over(narrow_, tables_, group_->rank(), visit); }

int64_t RowGather::section(size_t table, int64_t rows) const {
  return section_bytes(tables_[table]->value, rows, !narrow_.empty());
}

// As the rank's message says.
int64_t RowGather::count(size_t rank, size_t table) const {
  int64_t rows = 0;
  std::memcpy(&rows, data_of(messages_[rank].bytes) + messages_[rank].begin + 8 * table, sizeof rows);
  return rows;
}

int64_t RowGather::length(size_t rank, int64_t dense) const {
  int64_t bytes = 8 * static_cast<int64_t>(tables_.size()) + dense;
  for (size_t table = 0; table < tables_.size(); ++table) bytes += section(table, count(rank, table));
  return bytes;
}

void RowGather::run(const std::vector<at::Tensor>& dense) {
  if (tables_.empty()) return;
  at::NoGradGuard no_grad;
  dense_ = dense_bytes(dense);
  // All ranks know how much there is before the first row.
  const int64_t least = 8 * static_cast<int64_t>(tables_.size()) + dense_;
  expected_.resize(ranks_, least);
  for (int64_t& bytes : expected_) bytes = std::max(bytes, least);
  pack(dense);
  gather();

  const int64_t counts = 8 * static_cast<int64_t>(tables_.size());
  for (MessagePart& message : messages_) message.begin += counts;
  sum_dense(dense, messages_);
  for (MessagePart& message : messages_) message.begin -= counts;
  merge_all(false);
}

void RowGather::merge_all(bool complete) {
  std::vector<int64_t> begins(ranks_);  // of what is to be read next, by rank
  for (size_t rank = 0; rank < ranks_; ++rank)
    begins[rank] = messages_[rank].begin + 8 * static_cast<int64_t>(tables_.size()) + dense_;
  for (size_t table = 0; table < tables_.size(); ++table)
    merge(table, begins, complete ? nullptr : tables_[table]->table->updaters());
}

void RowGather::written() {
  if (HostRows* const shared = host()) shared->written();
}

void RowGather::read() {
  if (HostRows* const shared = host()) shared->read();
}

void RowGather::complete() {
  if (host() != nullptr && messages_.front().bytes.defined()) merge_all(true);
}

void RowGather::pack(const std::vector<at::Tensor>& dense) {
  const auto own = static_cast<size_t>(group_->rank());
  std::vector<TableRows> touched;
  int64_t bytes = 8 * static_cast<int64_t>(tables_.size()) + dense_;
  for (size_t table = 0; table < tables_.size(); ++table) {
    touched.push_back(tables_[table]->table->touched());
    bytes += section(table, touched.back().numbers.numel());
  }
  with_room(packed_, std::max(bytes, expected_[own]), at::kCPU);
  char* to = data_of(packed_);
  for (const TableRows& rows : touched) {
    const int64_t count = rows.numbers.numel();
    std::memcpy(to, &count, sizeof count);
    to += sizeof count;
  }
  to = write_dense(to, dense);
  for (size_t table = 0; table < tables_.size(); ++table) {
    const TableRows& rows = touched[table];
    const int64_t count = rows.numbers.numel(), size = number_bytes(tables_[table]->value.size(0));
    const int64_t* numbers = rows.numbers.const_data_ptr<int64_t>();
    if (size == 4)
      std::transform(numbers, numbers + count, reinterpret_cast<int32_t*>(to),
                     [](int64_t number) { return static_cast<int32_t>(number); });
    else
      std::copy(numbers, numbers + count, reinterpret_cast<int64_t*>(to));
    to += padded(count * size);
    if (!narrow_.empty()) {
      to = narrow_[table].encode(to, rows);
      continue;
    }
    std::memcpy(to, rows.values.const_data_ptr(), rows.values.nbytes());
    to += padded(bytes_of(rows.values));
  }
}

void RowGather::gather() {
  const auto own = static_cast<size_t>(group_->rank());
  const int64_t all = sum(expected_);
  with_room(gathered_, all, at::kCPU);
  group_->all_gather_v(gathered_.narrow(0, 0, all), packed_.narrow(0, 0, expected_[own]), expected_, {"rows", {}})
      ->wait();
  int64_t begin = 0, received = 0;
  bool whole = true;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    messages_[rank] = {gathered_, begin};
    lengths_[rank] = length(rank, dense_);
    whole = whole && lengths_[rank] <= expected_[rank];
    begin += expected_[rank];
    if (rank != own) received += lengths_[rank] - dense_;
  }
  if (!warned_) warned_ = warn_if_more_than_dense(*group_, tables_, received);
  if (!whole) gather_rest();
}

// Seldom: a message is longer than its rank's ever was.
void RowGather::gather_rest() {
  const auto own = static_cast<size_t>(group_->rank());
  std::vector<int64_t> rests(ranks_);
  for (size_t rank = 0; rank < ranks_; ++rank) rests[rank] = std::max<int64_t>(lengths_[rank] - expected_[rank], 0);
  const int64_t all = sum(rests);
  with_room(rest_, all, at::kCPU);
  group_->all_gather_v(rest_.narrow(0, 0, all), packed_.narrow(0, expected_[own], rests[own]), rests, {"more rows", {}})
      ->wait();
  int64_t begin = 0;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    if (rests[rank] == 0) continue;
    const at::Tensor message = at::empty({lengths_[rank]}, at::kByte);
    std::memcpy(data_of(message), data_of(gathered_) + messages_[rank].begin, static_cast<size_t>(expected_[rank]));
    std::memcpy(data_of(message) + expected_[rank], data_of(rest_) + begin, static_cast<size_t>(rests[rank]));
    begin += rests[rank];
    messages_[rank] = {message, 0};
    expected_[rank] = lengths_[rank];
  }
}

void RowGather::merge(size_t table, std::vector<int64_t>& begins, const RowBlocks* updaters) {
  const at::Tensor& value = tables_[table]->value;
  int64_t most = 0;
  for (size_t rank = 0; rank < ranks_; ++rank) most += count(rank, table);
  RowSums& sums = sums_[table];
  sums.begin(most, value, updaters);
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int64_t rows = count(rank, table), size = number_bytes(value.size(0));
    const char* numbers = data_of(messages_[rank].bytes) + begins[rank];
    const char* values = numbers + padded(rows * size);
    if (!narrow_.empty()) values = narrow_[table].decode(values, rows);
    if (size == 4)
      sums.add(reinterpret_cast<const int32_t*>(numbers), values, rows);
    else
      sums.add(reinterpret_cast<const int64_t*>(numbers), values, rows);
    begins[rank] += section(table, rows);
  }
  tables_[table]->table->set_update(sums.rows());
}

}  // namespace convoy
