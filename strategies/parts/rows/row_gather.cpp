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
      touched_sums_(tables_.size()),
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
  for (size_t table = 0; table < tables_.size(); ++table) {
    const std::vector<Section> told = sections(table, begins);
    if (number_bytes(tables_[table]->value.size(0)) == 4)
      add_up<int32_t>(table, told, complete);
    else
      add_up<int64_t>(table, told, complete);
  }
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

std::vector<RowGather::Section> RowGather::sections(size_t table, std::vector<int64_t>& begins) const {
  std::vector<Section> all;
  const int64_t size = number_bytes(tables_[table]->value.size(0));
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int64_t rows = count(rank, table);
    const char* numbers = data_of(messages_[rank].bytes) + begins[rank];
    all.push_back({numbers, numbers + padded(rows * size), rows});
    begins[rank] += section(table, rows);
  }
  return all;
}

// In the table's dtype; valid until the next one's.
const char* RowGather::values_of(size_t table, const Section& section) {
  return narrow_.empty() ? section.values : narrow_[table].decode(section.values, section.rows);
}

template <class Number>
void RowGather::add_up(size_t table, const std::vector<Section>& sections, bool complete) {
  const auto numbers_of = [](const Section& section) { return reinterpret_cast<const Number*>(section.numbers); };
  const at::Tensor& value = tables_[table]->value;
  RowTable& rows = *tables_[table]->table;
  if (!complete && rows.updaters() != nullptr && host()->group().size() == group_->size()) {
    TouchedSums& sums = touched_sums_[table];
    sums.begin(rows.places(), group_->rank(), group_->size(), value);
    for (size_t rank = 0; rank < ranks_; ++rank)
      if (static_cast<int>(rank) != group_->rank())
        sums.tell(static_cast<int>(rank), numbers_of(sections[rank]), sections[rank].rows);
    for (size_t rank = 0; rank < ranks_; ++rank)
      sums.add(static_cast<int>(rank), values_of(table, sections[rank]), sections[rank].rows);
    return rows.set_update(sums.rows());
  }
  int64_t most = 0;
  for (const Section& section : sections) most += section.rows;
  RowSums& sums = sums_[table];
  sums.begin(most, value, complete ? nullptr : rows.updaters());
  for (const Section& section : sections) sums.add(numbers_of(section), values_of(table, section), section.rows);
  rows.set_update(sums.rows());
}

}  // namespace convoy
