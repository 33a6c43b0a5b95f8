#include "strategies/parts/rows/row_gather.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/optim/norm.h"
#include "strategies/parts/rows/host_rows.h"
#include "strategies/parts/rows/row_bytes.h"

namespace convoy {
namespace {

char* data_of(const at::Tensor& bytes) { return static_cast<char*>(bytes.mutable_data_ptr()); }

constexpr int64_t least_common_bytes = 16 << 20;

// Well below what a float holds, so that rounding does not matter.
constexpr double largest_sum = 1e38;

// Of all gradients of a rank's rows, as one vector; not finite where one of them is not.
double length_of(const std::vector<TableRows>& touched) {
  double squares = 0;
  for (const TableRows& rows : touched) {
    const HostSquareSum part = host_square_sum(rows.values);
    squares += part.finite ? part.sum : std::numeric_limits<double>::quiet_NaN();
  }
  return std::sqrt(squares);
}

int64_t sum(const std::vector<int64_t>& list) { return std::accumulate(list.begin(), list.end(), int64_t{0}); }

}  // namespace

RowGather::RowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers)
    : group_(std::move(group)),
      ranks_(static_cast<size_t>(group_->size())),
      tables_(std::move(tables)),
      sums_(tables_.size()),
      touched_sums_(tables_.size()),
      narrow_(narrow_rows(tables_, group_->size(), numbers)),
      in_common_(host() != nullptr && host()->group().size() == group_->size()),
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
  int64_t bytes = head_bytes() + dense;
  for (size_t table = 0; table < tables_.size(); ++table) bytes += section(table, count(rank, table));
  return bytes;
}

void RowGather::run(const std::vector<at::Tensor>& dense) {
  if (tables_.empty()) return;
  at::NoGradGuard no_grad;
  dense_ = dense_bytes(dense);
  // All ranks know how much there is before the first row.
  const int64_t least = head_bytes() + dense_;
  expected_.resize(ranks_, least);
  for (int64_t& bytes : expected_) bytes = std::max(bytes, least);
  make_room();
  pack(dense);
  gather();

  finite_sums_ = bounds_allow();
  for (MessagePart& message : messages_) message.begin += head_bytes();
  sum_dense(dense, messages_);
  for (MessagePart& message : messages_) message.begin -= head_bytes();
  merge_all(false);
}

void RowGather::merge_all(bool complete) {
  std::vector<int64_t> begins(ranks_);  // of what is to be read next, by rank
  for (size_t rank = 0; rank < ranks_; ++rank) begins[rank] = messages_[rank].begin + head_bytes() + dense_;
  for (size_t table = 0; table < tables_.size(); ++table) {
    const std::vector<Section> told = sections(table, begins);
    if (number_bytes(tables_[table]->value.size(0)) == 4)
      add_up<int32_t>(table, told, complete);
    else
      add_up<int64_t>(table, told, complete);
  }
}

void RowGather::written() {
  if (HostRows* const shared = host()) shared->publish();
}

void RowGather::read() {
  if (HostRows* const shared = host()) shared->read();
}

void RowGather::complete() {
  if (host() == nullptr || !messages_.front().bytes.defined()) return;
  merge_all(true);
  written();  // nobody writes the next message where another may still read this one
}

// Counts of rows, and the length of their gradients.
int64_t RowGather::head_bytes() const { return 8 * (static_cast<int64_t>(tables_.size()) + (bounded() ? 1 : 0)); }

// No element is larger than its rank's gradients are long, and no sum than these are together.
bool RowGather::bounds_allow() const {
  if (!bounded()) return false;
  double all = 0;
  for (const MessagePart& message : messages_) {
    double length = 0;
    std::memcpy(&length, data_of(message.bytes) + message.begin + 8 * static_cast<int64_t>(tables_.size()),
                sizeof length);
    all += length;
  }
  return all < largest_sum;  // and false where one is no number
}

int64_t RowGather::begin_of(size_t rank) const {
  return std::accumulate(expected_.begin(), expected_.begin() + static_cast<int64_t>(rank), int64_t{0});
}

// For first messages of all. What nobody writes to takes no memory, so there is much.
void RowGather::make_room() {
  const int64_t all = sum(expected_);
  if (in_common_ && (!gathered_.defined() || gathered_.numel() < all)) {
    const at::Tensor memory = group_->common_memory(std::max(2 * all, least_common_bytes), {"rows", {}});
    in_common_ = memory.defined();
    gathered_ = memory;
  }
  if (!in_common_) with_room(gathered_, all, at::kCPU);
}

void RowGather::pack(const std::vector<at::Tensor>& dense) {
  const auto own = static_cast<size_t>(group_->rank());
  std::vector<TableRows> touched;
  int64_t bytes = head_bytes() + dense_;
  for (size_t table = 0; table < tables_.size(); ++table) {
    touched.push_back(tables_[table]->table->touched());
    bytes += section(table, touched.back().numbers.numel());
  }
  in_place_ = in_common_ && bytes <= expected_[own];
  if (!in_place_) with_room(packed_, std::max(bytes, expected_[own]), at::kCPU);
  char* to = in_place_ ? data_of(gathered_) + begin_of(own) : data_of(packed_);
  for (const TableRows& rows : touched) {
    const int64_t count = rows.numbers.numel();
    std::memcpy(to, &count, sizeof count);
    to += sizeof count;
  }
  if (bounded()) {
    const double length = length_of(touched);
    std::memcpy(to, &length, sizeof length);
    to += sizeof length;
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
  const at::Tensor mine =
      in_place_ ? gathered_.narrow(0, begin_of(own), expected_[own]) : packed_.narrow(0, 0, expected_[own]);
  group_->all_gather_v(gathered_.narrow(0, 0, sum(expected_)), mine, expected_, {"rows", {}})->wait();
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
  const at::Tensor mine =
      rests[own] > 0 ? packed_.narrow(0, expected_[own], rests[own]) : at::empty({0}, rest_.options());
  group_->all_gather_v(rest_.narrow(0, 0, all), mine, rests, {"more rows", {}})->wait();
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
