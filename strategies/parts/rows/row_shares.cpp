#include "strategies/parts/rows/row_shares.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "strategies/parts/rows/row_bytes.h"
#include "strategies/parts/rows/row_messages.h"

namespace convoy {
namespace {

char* data_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

// to row i = from row positions[i], or the other way round.
void gather_rows(char* to, const char* from, const std::vector<int64_t>& positions, int64_t row) {
  for (const int64_t position : positions) {
    std::memcpy(to, from + position * row, static_cast<size_t>(row));
    to += row;
  }
}

void scatter_rows(char* to, const char* from, const std::vector<int64_t>& positions, int64_t row) {
  for (const int64_t position : positions) {
    std::memcpy(to + position * row, from, static_cast<size_t>(row));
    from += row;
  }
}

int64_t length_of(const std::vector<int64_t>& list) { return static_cast<int64_t>(list.size()); }

at::Tensor tensor_of(const std::vector<int64_t>& list) {
  return at::from_blob(const_cast<int64_t*>(list.data()), {length_of(list)}, at::TensorOptions(at::kLong));
}

void append(std::vector<int64_t>& to, const std::vector<int64_t>& more, int64_t plus) {
  for (const int64_t one : more) to.push_back(one + plus);
}

}  // namespace

RowShares::RowShares(const CommunicatorPtr& group, std::vector<ParameterPtr> tables, Compression numbers)
    : group_(group->split(0, group->rank(), {"rows of owners", {}})),
      rank_(group_->rank()),
      ranks_(group_->size()),
      tables_(std::move(tables)),
      order_(tables_.size(), Lists(static_cast<size_t>(ranks_))),
      asked_(tables_.size(), Lists(static_cast<size_t>(ranks_))),
      sums_(tables_.size()),
      narrow_(narrow_rows(tables_, ranks_, numbers)),
      outgoing_(static_cast<size_t>(ranks_)),
      incoming_(static_cast<size_t>(ranks_)),
      tensors_(tables_.size(), nobody_knows) {
  for (size_t table = 0; table < tables_.size(); ++table) {
    CONVOY_CHECK(tables_[table]->table->blocks() && blocks(table).ranks() == ranks_, tables_[table]->name,
                 " is not dealt out to this group");
    tables_[table]->table->draw_from(this, static_cast<int>(table));
  }
}

int64_t RowShares::row_bytes(size_t table) const {
  const at::Tensor& value = tables_[table]->value;
  return value.size(1) * static_cast<int64_t>(value.element_size());
}

int64_t RowShares::gradient_bytes(size_t table, int64_t rows) const {
  return narrow_.empty() ? padded(rows * row_bytes(table)) : narrow_[table].bytes(rows);
}

int64_t RowShares::number_bytes(size_t table) const { return convoy::number_bytes(blocks(table).rows()); }

RowShares::Message& RowShares::resized(Message& message, int64_t bytes) {
  with_room(message.bytes, bytes, at::kCPU);
  message.length = bytes;
  return message;
}

void RowShares::begin() {
  received_ = 0;
  for (std::vector<Lists>* all : {&order_, &asked_})
    for (Lists& lists : *all)
      for (std::vector<int64_t>& list : lists) list.clear();
}

void RowShares::expect(const Batch& batch) {
  batch_ = batch;
  for (const ParameterPtr& table : tables_) table->table->take_lookups();
  foreseeing_ = agreed_ && std::all_of(tensors_.begin(), tensors_.end(), [](int64_t one) { return one >= 0; });
  if (!foreseeing_) return;
  at::NoGradGuard no_grad;
  std::vector<Wanted> wanted;
  for (size_t table = 0; table < tables_.size(); ++table) {
    const TableRows fresh =
        tables_[table]->table->foresee(batch_.tensors.at(static_cast<size_t>(tensors_[table])).second.contiguous());
    wanted.push_back({table, fresh.numbers, fresh.values});
  }
  fetch_all(wanted, true);
}

void RowShares::fetch(int table, const at::Tensor& numbers, const at::Tensor& out, bool trained) {
  if (trained && foreseeing_) {
    if (numbers.numel() == 0) return;
    throw Error(Failure::training,
                convoy::str(tables_[static_cast<size_t>(table)]->name, " is asked for rows that the batch's tensor ",
                            batch_.tensors[static_cast<size_t>(tensors_[static_cast<size_t>(table)])].first,
                            " does not hold, as it did in the first step; take model.rows: true for this model"));
  }
  fetch_all({{static_cast<size_t>(table), numbers, out}}, trained);
}

void RowShares::fetch_all(const std::vector<Wanted>& wanted, bool trained) {
  at::NoGradGuard no_grad;
  const std::vector<Dealt> dealt = deal(wanted);
  const std::vector<Lists> asked = ask(wanted, dealt, trained);
  answer(wanted, dealt, asked);
  if (!trained) return;
  count_received(0);
  for (size_t i = 0; i < wanted.size(); ++i) {
    Lists& order = order_[wanted[i].table];
    int64_t before = 0;
    for (const auto& list : order) before += length_of(list);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      append(order[rank], dealt[i].positions[rank], before);
      append(asked_[wanted[i].table][rank], asked[i][rank], 0);
    }
  }
}

std::vector<RowShares::Dealt> RowShares::deal(const std::vector<Wanted>& wanted) const {
  std::vector<Dealt> all;
  for (const Wanted& one : wanted) {
    const RowBlocks& blocks = this->blocks(one.table);
    const auto ranks = static_cast<size_t>(ranks_);
    Dealt dealt{Lists(ranks), Lists(ranks)};
    const int64_t n = one.numbers.numel();
    const int64_t* numbers = one.numbers.const_data_ptr<int64_t>();
    for (size_t rank = 0; rank < ranks; ++rank) {
      dealt.positions[rank].reserve(static_cast<size_t>(n));
      dealt.numbers[rank].reserve(static_cast<size_t>(n));
    }
    for (int64_t i = 0; i < n; ++i) {
      const auto owner = static_cast<size_t>(blocks.owner(numbers[i]));
      dealt.positions[owner].push_back(i);
      dealt.numbers[owner].push_back(numbers[i]);
    }
    all.push_back(std::move(dealt));
  }
  return all;
}

// First messages hold the numbers' counts, and may have to grow while batches do. Of evaluation they hold nothing more.
RowShares::Sizes& RowShares::sizes_of(const std::vector<Wanted>& wanted, bool trained) {
  const size_t first = wanted.front().table, count = wanted.size();
  Sizes& sizes = sizes_[{first, trained ? count : 0}];
  if (sizes.out.empty()) {
    sizes.out.assign(static_cast<size_t>(ranks_), 8 * static_cast<int64_t>(count));
    sizes.in = sizes.out;
  }
  return sizes;
}

void RowShares::write_request(int peer, const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt,
                              int64_t least) {
  const auto to = static_cast<size_t>(peer);
  int64_t bytes = 8 * static_cast<int64_t>(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i)
    bytes += padded(length_of(dealt[i].numbers[to]) * number_bytes(wanted[i].table));
  Message& message = resized(outgoing_[to], bytes);
  with_room(message.bytes, std::max(bytes, least), at::kCPU);
  char* at = data_of(message.bytes);
  for (const Dealt& one : dealt) {
    const int64_t count = length_of(one.numbers[to]);
    std::memcpy(at, &count, sizeof count);
    at += sizeof count;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<int64_t>& numbers = dealt[i].numbers[to];
    if (number_bytes(wanted[i].table) == 4)
      std::copy(numbers.begin(), numbers.end(), reinterpret_cast<int32_t*>(at));
    else
      std::copy(numbers.begin(), numbers.end(), reinterpret_cast<int64_t*>(at));
    at += padded(length_of(numbers) * number_bytes(wanted[i].table));
  }
}

// Of what a peer asks for, by its message.
int64_t RowShares::asked_of(int peer, size_t index) const {
  int64_t count = 0;
  std::memcpy(&count, incoming_[static_cast<size_t>(peer)].bytes.const_data_ptr<uint8_t>() + 8 * index, sizeof count);
  return count;
}

// Requests as long as both ends expect them to be, and then what did not fit.
void RowShares::exchange_requests(const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt,
                                  const Sizes& sizes) {
  std::vector<Transfer> first, rest;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto at = static_cast<size_t>(peer);
    write_request(peer, wanted, dealt, sizes.out[at]);
    const Message& out = outgoing_[at];
    with_room(incoming_[at].bytes, sizes.in[at], at::kCPU);
    first.push_back({Transfer::Kind::receive, incoming_[at].bytes.narrow(0, 0, sizes.in[at]), peer});
    first.push_back({Transfer::Kind::send, out.bytes.narrow(0, 0, sizes.out[at]), peer});
    if (out.length > sizes.out[at])
      rest.push_back({Transfer::Kind::send, out.bytes.narrow(0, sizes.out[at], out.length - sizes.out[at]), peer});
  }
  group_->group(first, {"numbers of rows", {}})->wait();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto at = static_cast<size_t>(peer);
    Message& in = incoming_[at];
    in.length = 8 * static_cast<int64_t>(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) in.length += padded(asked_of(peer, i) * number_bytes(wanted[i].table));
    if (in.length <= sizes.in[at]) continue;
    const at::Tensor come = in.bytes;
    with_room(in.bytes, in.length, at::kCPU);
    if (!in.bytes.is_same(come)) in.bytes.narrow(0, 0, sizes.in[at]).copy_(come.narrow(0, 0, sizes.in[at]));
    rest.push_back({Transfer::Kind::receive, in.bytes.narrow(0, sizes.in[at], in.length - sizes.in[at]), peer});
  }
  if (!rest.empty()) group_->group(rest, {"more numbers of rows", {}})->wait();
}

// What each rank asks this one for: places, by Wanted and asker.
std::vector<RowShares::Lists> RowShares::ask(const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt,
                                             bool trained) {
  Sizes& sizes = sizes_of(wanted, trained);
  exchange_requests(wanted, dealt, sizes);
  std::vector<Lists> asked(wanted.size(), Lists(static_cast<size_t>(ranks_)));
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = static_cast<size_t>(peer);
    int64_t begin = 8 * static_cast<int64_t>(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      std::vector<int64_t>& places = asked[i][at];
      if (peer == rank_) {
        places = dealt[i].numbers[at];
      } else {
        const int64_t count = asked_of(peer, i), bytes = number_bytes(wanted[i].table);
        const char* from = data_of(incoming_[at].bytes) + begin;
        if (bytes == 4)
          places.assign(reinterpret_cast<const int32_t*>(from), reinterpret_cast<const int32_t*>(from) + count);
        else
          places.assign(reinterpret_cast<const int64_t*>(from), reinterpret_cast<const int64_t*>(from) + count);
        begin += padded(count * bytes);
      }
      for (int64_t& one : places) one = blocks(wanted[i].table).place(one);
    }
    if (peer == rank_ || !trained) continue;
    // Both ends know these, and so the sizes of the next ones.
    const auto next = [](int64_t size, int64_t length) { return std::max(size, padded(length + length / 8)); };
    sizes.out[at] = next(sizes.out[at], outgoing_[at].length);
    sizes.in[at] = next(sizes.in[at], incoming_[at].length);
  }
  return asked;
}

void RowShares::exchange(const std::string& name) {
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = static_cast<size_t>(peer);
    if (peer == rank_) continue;
    if (incoming_[at].length > 0)
      transfers.push_back({Transfer::Kind::receive, incoming_[at].bytes.narrow(0, 0, incoming_[at].length), peer});
    if (outgoing_[at].length > 0)
      transfers.push_back({Transfer::Kind::send, outgoing_[at].bytes.narrow(0, 0, outgoing_[at].length), peer});
  }
  if (!transfers.empty()) group_->group(transfers, {name, {}})->wait();
}

void RowShares::count_received(int64_t dense) {
  for (int peer = 0; peer < ranks_; ++peer)
    if (peer != rank_) received_ += incoming_[static_cast<size_t>(peer)].length - dense;
}

void RowShares::look_up_own(const Wanted& wanted, const std::vector<int64_t>& positions,
                            const std::vector<int64_t>& places) {
  if (places.empty()) return;
  const at::Tensor& value = tables_[wanted.table]->value;
  const int64_t row = row_bytes(wanted.table), n = length_of(places);
  with_room(scratch_, n * row, at::kCPU);
  tables_[wanted.table]->table->look_up_held(
      tensor_of(places), bytes_as(scratch_, 0, n * value.size(1), value.scalar_type()).view({n, value.size(1)}));
  scatter_rows(data_of(wanted.out), data_of(scratch_), positions, row);
}

void RowShares::answer(const std::vector<Wanted>& wanted, const std::vector<Dealt>& dealt,
                       const std::vector<Lists>& asked) {
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = static_cast<size_t>(peer);
    int64_t out = 0, in = 0;
    for (size_t i = 0; i < wanted.size() && peer != rank_; ++i) {
      out += padded(length_of(asked[i][at]) * row_bytes(wanted[i].table));
      in += padded(length_of(dealt[i].numbers[at]) * row_bytes(wanted[i].table));
    }
    resized(incoming_[at], in);
    Message& message = resized(outgoing_[at], out);
    int64_t begin = 0;
    for (size_t i = 0; i < wanted.size() && peer != rank_; ++i) {
      const at::Tensor& value = tables_[wanted[i].table]->value;
      const int64_t n = length_of(asked[i][at]), width = value.size(1);
      if (n > 0)
        tables_[wanted[i].table]->table->look_up_held(
            tensor_of(asked[i][at]), bytes_as(message.bytes, begin, n * width, value.scalar_type()).view({n, width}));
      begin += padded(n * row_bytes(wanted[i].table));
    }
  }
  exchange("rows");
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = static_cast<size_t>(peer);
    int64_t begin = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (peer == rank_) {
        look_up_own(wanted[i], dealt[i].positions[at], asked[i][at]);
        continue;
      }
      const int64_t row = row_bytes(wanted[i].table);
      scatter_rows(data_of(wanted[i].out), data_of(incoming_[at].bytes) + begin, dealt[i].positions[at], row);
      begin += padded(length_of(dealt[i].positions[at]) * row);
    }
  }
}

void RowShares::run(const std::vector<at::Tensor>& dense) {
  at::NoGradGuard no_grad;
  send_gradients(dense);
  add_dense(dense);
  add_rows();
  if (!agreed_) learn();
  batch_ = {};
  foreseeing_ = false;
}

void RowShares::visit(const StateVisitor& visit) const { visit_left_over(narrow_, tables_, rank_, visit); }

void RowShares::send_gradients(const std::vector<at::Tensor>& dense) {
  dense_bytes_ = convoy::dense_bytes(dense);
  with_room(own_dense_, dense_bytes_, at::kCPU);
  write_dense(data_of(own_dense_), dense);
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = static_cast<size_t>(peer);
    int64_t out = dense_bytes_, in = dense_bytes_;
    for (size_t table = 0; table < tables_.size(); ++table) {
      out += gradient_bytes(table, length_of(order_[table][at]));
      in += gradient_bytes(table, length_of(asked_[table][at]));
    }
    if (peer == rank_) out = in = 0;
    resized(incoming_[at], in);
    Message& message = resized(outgoing_[at], out);
    if (peer == rank_) continue;
    char* to = data_of(message.bytes);
    std::memcpy(to, data_of(own_dense_), static_cast<size_t>(dense_bytes_));
    to += dense_bytes_;
    for (size_t table = 0; table < tables_.size(); ++table) {
      const TableRows touched = tables_[table]->table->touched();
      if (narrow_.empty())
        gather_rows(to, data_of(touched.values), order_[table][at], row_bytes(table));
      else
        narrow_[table].encode(to, touched, &order_[table][at]);
      to += gradient_bytes(table, length_of(order_[table][at]));
    }
  }
  exchange("gradients of rows");
  count_received(dense_bytes_);
  if (!warned_) warned_ = warn_if_more_than_dense(*group_, tables_, received_);
}

void RowShares::add_dense(const std::vector<at::Tensor>& dense) {
  std::vector<MessagePart> parts;
  for (int rank = 0; rank < ranks_; ++rank)
    parts.push_back({rank == rank_ ? own_dense_ : incoming_[static_cast<size_t>(rank)].bytes, 0});
  sum_dense(dense, parts);
}

void RowShares::add_rows() {
  std::vector<int64_t> begins(static_cast<size_t>(ranks_), dense_bytes_);
  for (size_t table = 0; table < tables_.size(); ++table) {
    const at::Tensor& value = tables_[table]->value;
    const int64_t row = row_bytes(table);
    int64_t most = 0;
    for (const auto& places : asked_[table]) most += length_of(places);
    sums_[table].begin(most, value);
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto at = static_cast<size_t>(rank);
      const std::vector<int64_t>& places = asked_[table][at];
      const int64_t n = length_of(places);
      const char* values = nullptr;
      if (rank == rank_) {
        char* const own = data_of(with_room(scratch_, n * row, at::kCPU));
        gather_rows(own, data_of(tables_[table]->table->touched().values), order_[table][at], row);
        values = own;
      } else if (n > 0) {
        values = data_of(incoming_[at].bytes) + begins[at];
        if (!narrow_.empty()) values = narrow_[table].decode(values, n);
      }
      sums_[table].add(places.data(), values, n);
      begins[at] += gradient_bytes(table, n);
    }
    tables_[table]->table->set_update(sums_[table].rows());
  }
}

// Which tensor of the batch all lookups of a table lie in. Ranks without rows cannot tell.
void RowShares::learn() {
  const auto tables = static_cast<int64_t>(tables_.size());
  at::Tensor mine = at::empty({tables}, at::kLong), all = at::empty({ranks_, tables}, at::kLong);
  for (size_t table = 0; table < tables_.size(); ++table) {
    int64_t found = nobody_knows;
    for (const RowTable::Lookup& lookup : tables_[table]->table->take_lookups()) {
      if (lookup.n == 0) continue;
      int64_t one = none;
      for (size_t i = 0; i < batch_.tensors.size(); ++i) {
        const at::Tensor& tensor = batch_.tensors[i].second;
        if (tensor.scalar_type() != at::kLong || !tensor.is_cpu() || !tensor.is_contiguous()) continue;
        const auto* begin = tensor.const_data_ptr<int64_t>();
        if (lookup.ids >= begin && lookup.ids + lookup.n <= begin + tensor.numel()) one = static_cast<int64_t>(i);
      }
      found = found == nobody_knows || found == one ? one : int64_t{none};
    }
    mine[static_cast<int64_t>(table)] = found;
  }
  group_->all_gather(all, mine, {"where ids lie", {}})->wait();
  agreed_ = true;
  for (int64_t table = 0; table < tables; ++table) {
    int64_t& said = tensors_[static_cast<size_t>(table)] = nobody_knows;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto one = all[rank][table].item<int64_t>();
      if (one != nobody_knows) said = said == nobody_knows || said == one ? one : int64_t{none};
    }
    agreed_ = agreed_ && said != nobody_knows;
  }
}

}  // namespace convoy
