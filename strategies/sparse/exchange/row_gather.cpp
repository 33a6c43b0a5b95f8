#include "strategies/sparse/exchange/row_gather.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/optim/loops.h"
#include "strategies/sparse/shared_rows.h"

namespace convoy {

// --- Dense gradients in messages ---

namespace {

template <class T>
void sum_on_host(T* __restrict to, int64_t n, int64_t begin, const std::vector<MessagePart>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto* bytes = ranks[rank].bytes.const_data_ptr<uint8_t>() + ranks[rank].begin + begin;
    const T* __restrict from = reinterpret_cast<const T*>(bytes);
    if (rank == 0)
      std::memcpy(to, from, sizeof(T) * size_t(n));
    else
      for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }
}

void sum_with_tensors(const at::Tensor& one, int64_t begin, const std::vector<MessagePart>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor part =
        bytes_as(ranks[rank].bytes, ranks[rank].begin + begin, one.numel(), one.scalar_type()).view(one.sizes());
    if (rank == 0)
      one.copy_(part);
    else
      one.add_(part);
  }
}

}  // namespace

int64_t dense_bytes(const std::vector<at::Tensor>& dense) {
  int64_t bytes = 0;
  for (const at::Tensor& one : dense) bytes += padded(bytes_of(one));
  return bytes;
}

char* write_dense(char* to, const std::vector<at::Tensor>& dense) {
  for (const at::Tensor& one : dense) {
    std::memcpy(to, one.const_data_ptr(), one.nbytes());
    to += padded(bytes_of(one));
  }
  return to;
}

void sum_dense(const std::vector<at::Tensor>& dense, const std::vector<MessagePart>& ranks) {
  int64_t begin = 0;
  for (const at::Tensor& one : dense) {
    if (one.is_cpu() && one.scalar_type() == at::kFloat)
      sum_on_host(one.mutable_data_ptr<float>(), one.numel(), begin, ranks);
    else if (one.is_cpu() && one.scalar_type() == at::kDouble)
      sum_on_host(one.mutable_data_ptr<double>(), one.numel(), begin, ranks);
    else
      sum_with_tensors(one, begin, ranks);
    begin += padded(bytes_of(one));
  }
}

// --- RowGather ---

namespace {

constexpr int64_t least_common_bytes = 16 << 20;

// Well below float's maximum, so rounding does not matter.
constexpr double largest_sum = 1e38;

// Norm of all gradients of a rank's rows; not finite if one of them is not.
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
    : RowExchange(std::move(group), std::move(tables), numbers),
      ranks_(size_t(group_->size())),
      sums_(tables_.size()),
      touched_sums_(tables_.size()),
      in_shared_memory_(host() != nullptr && host()->group().size() == group_->size()),
      lengths_(ranks_),
      messages_(ranks_) {}

// Reads the count from the rank's message.
int64_t RowGather::count(size_t rank, size_t table) const {
  int64_t rows = 0;
  std::memcpy(&rows, data_of(messages_[rank].bytes) + messages_[rank].begin + 8 * table, sizeof rows);
  return rows;
}

int64_t RowGather::length(size_t rank, int64_t dense) const {
  int64_t bytes = head_bytes() + dense;
  for (size_t table = 0; table < tables_.size(); ++table) bytes += section_bytes(table, count(rank, table));
  return bytes;
}

void RowGather::run(const std::vector<at::Tensor>& dense) {
  if (tables_.empty()) return;
  at::NoGradGuard no_grad;
  dense_ = dense_bytes(dense);
  // All ranks know the length of the fixed sections before the first row.
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
  std::vector<int64_t> begins(ranks_);  // next byte to read, by rank
  for (size_t rank = 0; rank < ranks_; ++rank) begins[rank] = messages_[rank].begin + head_bytes() + dense_;
  for (size_t table = 0; table < tables_.size(); ++table) {
    const std::vector<Section> sections_of_table = sections(table, begins);
    if (number_bytes(table) == 4)
      add_up<int32_t>(table, sections_of_table, complete);
    else
      add_up<int64_t>(table, sections_of_table, complete);
  }
}

void RowGather::written() {
  if (SharedRows* const shared = host()) shared->publish();
}

void RowGather::read() {
  if (SharedRows* const shared = host()) shared->read();
}

bool RowGather::updates_together() const { return host() != nullptr && host()->group().size() == group_->size(); }

bool RowGather::agree(bool yes) { return host()->agree(yes); }

void RowGather::complete() {
  if (host() == nullptr || !messages_.front().bytes.defined()) return;
  merge_all(true);
  written();  // no rank overwrites a message that another rank may still read
}

// Row counts, and the norm of the rows' gradients.
int64_t RowGather::head_bytes() const { return 8 * (int64_t(tables_.size()) + (bounded() ? 1 : 0)); }

// No element exceeds the norm of its rank's gradients, and no sum exceeds the sum of the norms.
bool RowGather::bounds_allow() const {
  if (!bounded()) return false;
  double all = 0;
  for (const MessagePart& message : messages_) {
    double length = 0;
    std::memcpy(&length, data_of(message.bytes) + message.begin + 8 * int64_t(tables_.size()), sizeof length);
    all += length;
  }
  return all < largest_sum;  // also false if one is NaN
}

int64_t RowGather::begin_of(size_t rank) const {
  return std::accumulate(expected_.begin(), expected_.begin() + int64_t(rank), int64_t{0});
}

// Allocates memory for all first messages, generously: untouched pages take no memory.
void RowGather::make_room() {
  const int64_t all = sum(expected_);
  if (in_shared_memory_ && (!gathered_.defined() || gathered_.numel() < all)) {
    const at::Tensor memory = group_->common_memory(std::max(2 * all, least_common_bytes), {"rows", {}});
    in_shared_memory_ = memory.defined();
    gathered_ = memory;
  }
  if (!in_shared_memory_) ensure_bytes(gathered_, all, at::kCPU);
}

void RowGather::pack(const std::vector<at::Tensor>& dense) {
  const auto own = size_t(group_->rank());
  std::vector<TableRows> touched;
  int64_t bytes = head_bytes() + dense_;
  for (size_t table = 0; table < tables_.size(); ++table) {
    touched.push_back(tables_[table]->table->touched());
    bytes += section_bytes(table, touched.back().numbers.numel());
  }
  in_place_ = in_shared_memory_ && bytes <= expected_[own];
  if (!in_place_) ensure_bytes(packed_, std::max(bytes, expected_[own]), at::kCPU);
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
    const int64_t count = rows.numbers.numel(), size = number_bytes(table);
    const int64_t* numbers = rows.numbers.const_data_ptr<int64_t>();
    if (size == 4)
      std::transform(numbers, numbers + count, reinterpret_cast<int32_t*>(to),
                     [](int64_t number) { return int32_t(number); });
    else
      std::copy(numbers, numbers + count, reinterpret_cast<int64_t*>(to));
    to += padded(count * size);
    if (!compressed_.empty()) {
      to = compressed_[table].encode(to, rows);
      continue;
    }
    std::copy_n(static_cast<const char*>(rows.values.const_data_ptr()), rows.values.nbytes(), to);
    to += padded(bytes_of(rows.values));
  }
}

void RowGather::gather() {
  const auto own = size_t(group_->rank());
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
  warn_if_more_than_dense(received);
  if (!whole) gather_rest();
}

// Rare: a rank's message is longer than all its earlier ones.
void RowGather::gather_rest() {
  const auto own = size_t(group_->rank());
  std::vector<int64_t> rests(ranks_);
  for (size_t rank = 0; rank < ranks_; ++rank) rests[rank] = std::max<int64_t>(lengths_[rank] - expected_[rank], 0);
  const int64_t all = sum(rests);
  ensure_bytes(rest_, all, at::kCPU);
  const at::Tensor mine =
      rests[own] > 0 ? packed_.narrow(0, expected_[own], rests[own]) : at::empty({0}, rest_.options());
  group_->all_gather_v(rest_.narrow(0, 0, all), mine, rests, {"more rows", {}})->wait();
  int64_t begin = 0;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    if (rests[rank] == 0) continue;
    const at::Tensor message = at::empty({lengths_[rank]}, at::kByte);
    std::memcpy(data_of(message), data_of(gathered_) + messages_[rank].begin, size_t(expected_[rank]));
    std::memcpy(data_of(message) + expected_[rank], data_of(rest_) + begin, size_t(rests[rank]));
    begin += rests[rank];
    messages_[rank] = {message, 0};
    expected_[rank] = lengths_[rank];
  }
}

std::vector<RowGather::Section> RowGather::sections(size_t table, std::vector<int64_t>& begins) const {
  std::vector<Section> all;
  const int64_t size = number_bytes(table);
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int64_t rows = count(rank, table);
    const char* numbers = data_of(messages_[rank].bytes) + begins[rank];
    all.push_back({numbers, numbers + padded(rows * size), rows});
    begins[rank] += section_bytes(table, rows);
  }
  return all;
}

// Values in the table's dtype; valid until the next call.
const char* RowGather::values_of(size_t table, const Section& section) {
  return compressed_.empty() ? section.values : compressed_[table].decode(section.values, section.rows);
}

template <class Number>
void RowGather::add_up(size_t table, const std::vector<Section>& sections, bool complete) {
  const auto numbers_of = [](const Section& section) { return reinterpret_cast<const Number*>(section.numbers); };
  const at::Tensor& value = tables_[table]->value;
  SparseEmbedding& rows = tables_[table]->table->embedding();
  if (!complete && rows.updaters() != nullptr && host()->group().size() == group_->size()) {
    TouchedRowSums& sums = touched_sums_[table];
    const at::Tensor gradients = rows.touched().values;
    const auto own = size_t(group_->rank());
    if (!compressed_.empty() && sections[own].rows > 0)  // as the other ranks see them
      std::memcpy(gradients.mutable_data_ptr(), values_of(table, sections[own]), gradients.nbytes());
    sums.begin(rows.positions(), group_->rank(), group_->size(), gradients);
    for (size_t rank = 0; rank < ranks_; ++rank)
      if (rank != own) sums.set_numbers(int(rank), numbers_of(sections[rank]), sections[rank].rows);
    for (size_t rank = 0; rank < ranks_; ++rank)
      sums.add(int(rank), rank == own ? nullptr : values_of(table, sections[rank]));
    return rows.set_update(sums.rows());
  }
  int64_t most = 0;
  for (const Section& section : sections) most += section.rows;
  RowSums& sums = sums_[table];
  sums.begin(most, value, complete ? nullptr : rows.updaters());
  for (const Section& section : sections) sums.add(numbers_of(section), values_of(table, section), section.rows);
  rows.set_update(sums.rows());
}

DeviceRowGather::DeviceRowGather(CommunicatorPtr group, std::vector<ParameterPtr> tables, Compression numbers)
    : RowExchange(std::move(group), std::move(tables), numbers) {}

void DeviceRowGather::run(const std::vector<at::Tensor>& dense) {
  if (tables_.empty()) return;
  at::NoGradGuard no_grad;
  std::vector<TableRows> own;
  for (const ParameterPtr& table : tables_) own.push_back(table->table->touched());
  share_counts(own);
  pack(dense, own);
  const int64_t all = std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  ensure_bytes(gathered_, all, packed_.device());
  group_->all_gather_v(gathered_.narrow(0, 0, all), packed_.narrow(0, 0, local_bytes_), bytes_, {"rows", {}})->wait();
  const int64_t fixed = dense_bytes(dense);
  warn_if_more_than_dense(all - local_bytes_ - fixed * (group_->size() - 1));

  std::vector<int64_t> begins(bytes_.size(), 0);  // next byte to read, by rank
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
      begins[rank] += section_bytes(table, counts[int64_t(rank)][int64_t(table)]);
  }
}

void DeviceRowGather::share_counts(const std::vector<TableRows>& own) {
  const auto tables = int64_t(tables_.size());
  const at::Device device = tables_.front()->value.device();
  at::Tensor mine = at::empty({tables}, at::kLong);
  for (int64_t table = 0; table < tables; ++table) mine[table] = own[size_t(table)].numbers.numel();
  at::Tensor all = at::empty({group_->size(), tables}, at::TensorOptions(at::kLong).device(device));
  group_->all_gather(all, mine.to(device), {"numbers of rows", {}})->wait();
  counts_ = all.cpu();
}

void DeviceRowGather::pack(const std::vector<at::Tensor>& dense, const std::vector<TableRows>& own) {
  bytes_.assign(size_t(group_->size()), dense_bytes(dense));
  const auto counts = counts_.accessor<int64_t, 2>();
  for (size_t rank = 0; rank < bytes_.size(); ++rank)
    for (size_t table = 0; table < tables_.size(); ++table)
      bytes_[rank] += section_bytes(table, counts[int64_t(rank)][int64_t(table)]);
  local_bytes_ = bytes_[size_t(group_->rank())];
  ensure_bytes(packed_, local_bytes_, tables_.front()->value.device());
  int64_t at = 0;
  for (const at::Tensor& one : dense) {
    bytes_as(packed_, at, one.numel(), one.scalar_type()).copy_(one.view({-1}));
    at += padded(bytes_of(one));
  }
  for (size_t table = 0; table < tables_.size(); ++table) {
    const int64_t rows = own[table].numbers.numel();
    numbers_in(packed_, table, at, rows).copy_(own[table].numbers);
    at += padded(rows * number_bytes(table));
    const int64_t bytes = gradient_bytes(table, rows);
    const at::Tensor& values = own[table].values;
    if (compressed_.empty())
      bytes_as(packed_, at, values.numel(), values.scalar_type()).copy_(values.view({-1}));
    else
      compressed_[table].encode(packed_.narrow(0, at, bytes), own[table]);
    at += bytes;
  }
}

at::Tensor DeviceRowGather::numbers_in(const at::Tensor& bytes, size_t table, int64_t begin, int64_t rows) const {
  return bytes_as(bytes, begin, rows, number_bytes(table) == 4 ? at::kInt : at::kLong);
}

at::Tensor DeviceRowGather::values_at(size_t table, int64_t begin, int64_t rows) const {
  const at::Tensor& value = tables_[table]->value;
  const int64_t numbers = padded(rows * number_bytes(table));
  if (!compressed_.empty())
    return compressed_[table].decode(gathered_.narrow(0, begin + numbers, gradient_bytes(table, rows)), rows);
  return bytes_as(gathered_, begin + numbers, rows * value.size(1), value.scalar_type()).view({rows, value.size(1)});
}

// Adds the ranks in their order. A rank has each row once, so a GPU too sums in this order.
void DeviceRowGather::merge(size_t table, const std::vector<int64_t>& begins) {
  const at::Tensor& value = tables_[table]->value;
  const auto counts = counts_.accessor<int64_t, 2>();
  std::vector<at::Tensor> numbers, values;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = counts[int64_t(rank)][int64_t(table)];
    numbers.push_back(numbers_in(gathered_, table, begins[rank], rows).to(at::kLong));
    values.push_back(values_at(table, begins[rank], rows));
  }
  const auto [unique, positions, times] = at::_unique2(at::cat(numbers), true, true, false);
  at::Tensor total = at::zeros({unique.numel(), value.size(1)}, value.options().requires_grad(false));
  int64_t at = 0;
  for (size_t rank = 0; rank < begins.size(); ++rank) {
    const int64_t rows = numbers[rank].numel();
    total.index_add_(0, positions.narrow(0, at, rows), values[rank]);
    at += rows;
  }
  tables_[table]->table->set_update({unique, total});
}

}  // namespace convoy
