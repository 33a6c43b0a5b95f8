#include "strategies/sparse/sharded_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "strategies/sparse/exchange/row_exchange.h"
#include "strategies/sparse/exchange/row_gather.h"

namespace convoy {
namespace {

// gather: row i of `to` = row positions[i] of `from`; scatter: the inverse.
void gather_rows(char* to, const char* from, const std::vector<int64_t>& positions, int64_t row) {
  for (const int64_t position : positions) {
    std::memcpy(to, from + position * row, size_t(row));
    to += row;
  }
}

void scatter_rows(char* to, const char* from, const std::vector<int64_t>& positions, int64_t row) {
  for (const int64_t position : positions) {
    std::memcpy(to + position * row, from, size_t(row));
    from += row;
  }
}

int64_t length_of(const std::vector<int64_t>& list) { return int64_t(list.size()); }

at::Tensor tensor_of(const std::vector<int64_t>& list) {
  return at::from_blob(const_cast<int64_t*>(list.data()), {length_of(list)}, at::TensorOptions(at::kLong));
}

void append(std::vector<int64_t>& to, const std::vector<int64_t>& more, int64_t plus) {
  for (const int64_t one : more) to.push_back(one + plus);
}

}  // namespace

ShardedRows::ShardedRows(const CommunicatorPtr& group, std::vector<ParameterPtr> tables, Compression numbers)
    : RowExchange(group->split(0, group->rank(), {"rows of owners", {}}), std::move(tables), numbers),
      rank_(group_->rank()),
      ranks_(group_->size()),
      order_(tables_.size(), Lists(size_t(ranks_))),
      requested_(tables_.size(), Lists(size_t(ranks_))),
      sums_(tables_.size()),
      outgoing_(size_t(ranks_)),
      incoming_(size_t(ranks_)),
      id_fields_(tables_.size(), unknown) {
  for (size_t table = 0; table < tables_.size(); ++table) {
    CONVOY_CHECK(tables_[table]->table->embedding().blocks() && blocks(table).ranks() == ranks_, tables_[table]->name,
                 " is not sharded over this group");
    tables_[table]->table->embedding().set_source(this, int(table));
  }
}

int64_t ShardedRows::row_bytes(size_t table) const {
  const at::Tensor& value = tables_[table]->value;
  return value.size(1) * int64_t(value.element_size());
}

ShardedRows::Message& ShardedRows::resized(Message& message, int64_t bytes) {
  ensure_bytes(message.bytes, bytes, at::kCPU);
  message.length = bytes;
  return message;
}

void ShardedRows::begin() {
  received_ = 0;
  for (std::vector<Lists>* all : {&order_, &requested_})
    for (Lists& lists : *all)
      for (std::vector<int64_t>& list : lists) list.clear();
}

void ShardedRows::expect(const Batch& batch) {
  batch_ = batch;
  for (const ParameterPtr& table : tables_) table->table->embedding().take_lookups();
  prefetching_ =
      fields_known_ && std::all_of(id_fields_.begin(), id_fields_.end(), [](int64_t one) { return one >= 0; });
  if (!prefetching_) return;
  at::NoGradGuard no_grad;
  std::vector<Request> requests;
  for (size_t table = 0; table < tables_.size(); ++table) {
    const TableRows fresh =
        tables_[table]->table->embedding().prefetch(batch_.tensors.at(size_t(id_fields_[table])).second.contiguous());
    requests.push_back({table, fresh.numbers, fresh.values});
  }
  fetch_all(requests, true);
}

void ShardedRows::fetch(int table, const at::Tensor& numbers, const at::Tensor& out, bool trained) {
  if (trained && prefetching_) {
    if (numbers.numel() == 0) return;
    throw Error(Failure::training, "look-ups of ", tables_[size_t(table)]->name, " use rows that are not in field ",
                batch_.tensors[size_t(id_fields_[size_t(table)])].first,
                " of the batch; the first step had no such look-ups; set model.rows: true");
  }
  fetch_all({{size_t(table), numbers, out}}, trained);
}

void ShardedRows::fetch_all(const std::vector<Request>& requests, bool trained) {
  at::NoGradGuard no_grad;
  const std::vector<ByOwner> by_owner = split_by_owner(requests);
  const std::vector<Lists> requested = receive_requests(requests, by_owner, trained);
  serve(requests, by_owner, requested);
  if (!trained) return;
  count_received(0);
  for (size_t i = 0; i < requests.size(); ++i) {
    Lists& order = order_[requests[i].table];
    int64_t before = 0;
    for (const auto& list : order) before += length_of(list);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      append(order[rank], by_owner[i].positions[rank], before);
      append(requested_[requests[i].table][rank], requested[i][rank], 0);
    }
  }
}

std::vector<ShardedRows::ByOwner> ShardedRows::split_by_owner(const std::vector<Request>& requests) const {
  std::vector<ByOwner> all;
  for (const Request& one : requests) {
    const SparseRowBlocks& blocks = this->blocks(one.table);
    const auto ranks = size_t(ranks_);
    ByOwner by_owner{Lists(ranks), Lists(ranks)};
    const int64_t n = one.numbers.numel();
    const int64_t* numbers = one.numbers.const_data_ptr<int64_t>();
    for (size_t rank = 0; rank < ranks; ++rank) {
      by_owner.positions[rank].reserve(size_t(n));
      by_owner.numbers[rank].reserve(size_t(n));
    }
    for (int64_t i = 0; i < n; ++i) {
      const auto owner = size_t(blocks.owner(numbers[i]));
      by_owner.positions[owner].push_back(i);
      by_owner.numbers[owner].push_back(numbers[i]);
    }
    all.push_back(std::move(by_owner));
  }
  return all;
}

// Sizes of the first messages. They hold the counts, and grow with the batches. In evaluation they hold only the
// counts.
ShardedRows::Sizes& ShardedRows::sizes_of(const std::vector<Request>& requests, bool trained) {
  const size_t first = requests.front().table, count = requests.size();
  Sizes& sizes = sizes_[{first, trained ? count : 0}];
  if (sizes.out.empty()) {
    sizes.out.assign(size_t(ranks_), 8 * int64_t(count));
    sizes.in = sizes.out;
  }
  return sizes;
}

void ShardedRows::write_request(int peer, const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
                                int64_t least) {
  const auto to = size_t(peer);
  int64_t bytes = 8 * int64_t(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    bytes += padded(length_of(by_owner[i].numbers[to]) * number_bytes(requests[i].table));
  Message& message = resized(outgoing_[to], bytes);
  ensure_bytes(message.bytes, std::max(bytes, least), at::kCPU);
  char* at = data_of(message.bytes);
  for (const ByOwner& one : by_owner) {
    const int64_t count = length_of(one.numbers[to]);
    std::memcpy(at, &count, sizeof count);
    at += sizeof count;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int64_t>& numbers = by_owner[i].numbers[to];
    if (number_bytes(requests[i].table) == 4)
      std::copy(numbers.begin(), numbers.end(), reinterpret_cast<int32_t*>(at));
    else
      std::copy(numbers.begin(), numbers.end(), reinterpret_cast<int64_t*>(at));
    at += padded(length_of(numbers) * number_bytes(requests[i].table));
  }
}

// Rows that a peer requests of a table, from its message.
int64_t ShardedRows::requested_rows(int peer, size_t index) const {
  int64_t count = 0;
  std::memcpy(&count, incoming_[size_t(peer)].bytes.const_data_ptr<uint8_t>() + 8 * index, sizeof count);
  return count;
}

// First exchanges the expected number of bytes of each message; then the remaining bytes of messages that are longer.
void ShardedRows::exchange_requests(const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
                                    const Sizes& sizes) {
  std::vector<Transfer> first, rest;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto at = size_t(peer);
    write_request(peer, requests, by_owner, sizes.out[at]);
    const Message& out = outgoing_[at];
    ensure_bytes(incoming_[at].bytes, sizes.in[at], at::kCPU);
    first.push_back({Transfer::Kind::receive, incoming_[at].bytes.narrow(0, 0, sizes.in[at]), peer});
    first.push_back({Transfer::Kind::send, out.bytes.narrow(0, 0, sizes.out[at]), peer});
    if (out.length > sizes.out[at])
      rest.push_back({Transfer::Kind::send, out.bytes.narrow(0, sizes.out[at], out.length - sizes.out[at]), peer});
  }
  group_->group(first, {"numbers of rows", {}})->wait();
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto at = size_t(peer);
    Message& in = incoming_[at];
    in.length = 8 * int64_t(requests.size());
    for (size_t i = 0; i < requests.size(); ++i)
      in.length += padded(requested_rows(peer, i) * number_bytes(requests[i].table));
    if (in.length <= sizes.in[at]) continue;
    const at::Tensor come = in.bytes;
    ensure_bytes(in.bytes, in.length, at::kCPU);
    if (!in.bytes.is_same(come)) in.bytes.narrow(0, 0, sizes.in[at]).copy_(come.narrow(0, 0, sizes.in[at]));
    rest.push_back({Transfer::Kind::receive, in.bytes.narrow(0, sizes.in[at], in.length - sizes.in[at]), peer});
  }
  if (!rest.empty()) group_->group(rest, {"more numbers of rows", {}})->wait();
}

// Requests to this rank: local row indices, by table and requester.
std::vector<ShardedRows::Lists> ShardedRows::receive_requests(const std::vector<Request>& requests,
                                                              const std::vector<ByOwner>& by_owner, bool trained) {
  Sizes& sizes = sizes_of(requests, trained);
  exchange_requests(requests, by_owner, sizes);
  std::vector<Lists> requested(requests.size(), Lists(size_t(ranks_)));
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = size_t(peer);
    int64_t begin = 8 * int64_t(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int64_t>& indices = requested[i][at];
      if (peer == rank_) {
        indices = by_owner[i].numbers[at];
      } else {
        const int64_t count = requested_rows(peer, i), bytes = number_bytes(requests[i].table);
        const char* from = data_of(incoming_[at].bytes) + begin;
        if (bytes == 4)
          indices.assign(reinterpret_cast<const int32_t*>(from), reinterpret_cast<const int32_t*>(from) + count);
        else
          indices.assign(reinterpret_cast<const int64_t*>(from), reinterpret_cast<const int64_t*>(from) + count);
        begin += padded(count * bytes);
      }
      for (int64_t& one : indices) one = blocks(requests[i].table).local_index(one);
    }
    if (peer == rank_ || !trained) continue;
    // Both ends know these lengths, and so the next sizes.
    const auto next = [](int64_t size, int64_t length) { return std::max(size, padded(length + length / 8)); };
    sizes.out[at] = next(sizes.out[at], outgoing_[at].length);
    sizes.in[at] = next(sizes.in[at], incoming_[at].length);
  }
  return requested;
}

void ShardedRows::exchange(const std::string& name) {
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = size_t(peer);
    if (peer == rank_) continue;
    if (incoming_[at].length > 0)
      transfers.push_back({Transfer::Kind::receive, incoming_[at].bytes.narrow(0, 0, incoming_[at].length), peer});
    if (outgoing_[at].length > 0)
      transfers.push_back({Transfer::Kind::send, outgoing_[at].bytes.narrow(0, 0, outgoing_[at].length), peer});
  }
  if (!transfers.empty()) group_->group(transfers, {name, {}})->wait();
}

void ShardedRows::count_received(int64_t dense) {
  for (int peer = 0; peer < ranks_; ++peer)
    if (peer != rank_) received_ += incoming_[size_t(peer)].length - dense;
}

void ShardedRows::look_up_local_rows(const Request& request, const std::vector<int64_t>& positions,
                                     const std::vector<int64_t>& indices) {
  if (indices.empty()) return;
  const at::Tensor& value = tables_[request.table]->value;
  const int64_t row = row_bytes(request.table), n = length_of(indices);
  ensure_bytes(scratch_, n * row, at::kCPU);
  tables_[request.table]->table->embedding().look_up_local(
      tensor_of(indices), bytes_as(scratch_, 0, n * value.size(1), value.scalar_type()).view({n, value.size(1)}));
  scatter_rows(data_of(request.out), data_of(scratch_), positions, row);
}

void ShardedRows::serve(const std::vector<Request>& requests, const std::vector<ByOwner>& by_owner,
                        const std::vector<Lists>& requested) {
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = size_t(peer);
    int64_t out = 0, in = 0;
    for (size_t i = 0; i < requests.size() && peer != rank_; ++i) {
      out += padded(length_of(requested[i][at]) * row_bytes(requests[i].table));
      in += padded(length_of(by_owner[i].numbers[at]) * row_bytes(requests[i].table));
    }
    resized(incoming_[at], in);
    Message& message = resized(outgoing_[at], out);
    int64_t begin = 0;
    for (size_t i = 0; i < requests.size() && peer != rank_; ++i) {
      const at::Tensor& value = tables_[requests[i].table]->value;
      const int64_t n = length_of(requested[i][at]), width = value.size(1);
      if (n > 0)
        tables_[requests[i].table]->table->embedding().look_up_local(
            tensor_of(requested[i][at]),
            bytes_as(message.bytes, begin, n * width, value.scalar_type()).view({n, width}));
      begin += padded(n * row_bytes(requests[i].table));
    }
  }
  exchange("rows");
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = size_t(peer);
    int64_t begin = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (peer == rank_) {
        look_up_local_rows(requests[i], by_owner[i].positions[at], requested[i][at]);
        continue;
      }
      const int64_t row = row_bytes(requests[i].table);
      scatter_rows(data_of(requests[i].out), data_of(incoming_[at].bytes) + begin, by_owner[i].positions[at], row);
      begin += padded(length_of(by_owner[i].positions[at]) * row);
    }
  }
}

void ShardedRows::run(const std::vector<at::Tensor>& dense) {
  at::NoGradGuard no_grad;
  send_gradients(dense);
  add_dense(dense);
  add_rows();
  if (!fields_known_) compare_id_fields();
  batch_ = {};
  prefetching_ = false;
}

void ShardedRows::send_gradients(const std::vector<at::Tensor>& dense) {
  dense_bytes_ = convoy::dense_bytes(dense);
  ensure_bytes(local_dense_, dense_bytes_, at::kCPU);
  write_dense(data_of(local_dense_), dense);
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = size_t(peer);
    int64_t out = dense_bytes_, in = dense_bytes_;
    for (size_t table = 0; table < tables_.size(); ++table) {
      out += gradient_bytes(table, length_of(order_[table][at]));
      in += gradient_bytes(table, length_of(requested_[table][at]));
    }
    if (peer == rank_) out = in = 0;
    resized(incoming_[at], in);
    Message& message = resized(outgoing_[at], out);
    if (peer == rank_) continue;
    char* to = data_of(message.bytes);
    std::copy_n(data_of(local_dense_), dense_bytes_, to);
    to += dense_bytes_;
    for (size_t table = 0; table < tables_.size(); ++table) {
      const TableRows touched = tables_[table]->table->touched();
      if (compressed_.empty())
        gather_rows(to, data_of(touched.values), order_[table][at], row_bytes(table));
      else
        compressed_[table].encode(to, touched, &order_[table][at]);
      to += gradient_bytes(table, length_of(order_[table][at]));
    }
  }
  exchange("gradients of rows");
  count_received(dense_bytes_);
  warn_if_more_than_dense(received_);
}

void ShardedRows::add_dense(const std::vector<at::Tensor>& dense) {
  std::vector<MessagePart> parts;
  for (int rank = 0; rank < ranks_; ++rank)
    parts.push_back({rank == rank_ ? local_dense_ : incoming_[size_t(rank)].bytes, 0});
  sum_dense(dense, parts);
}

void ShardedRows::add_rows() {
  std::vector<int64_t> begins(size_t(ranks_), dense_bytes_);
  for (size_t table = 0; table < tables_.size(); ++table) {
    const at::Tensor& value = tables_[table]->value;
    const int64_t row = row_bytes(table);
    int64_t most = 0;
    for (const auto& indices : requested_[table]) most += length_of(indices);
    sums_[table].begin(most, value);
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto at = size_t(rank);
      const std::vector<int64_t>& indices = requested_[table][at];
      const int64_t n = length_of(indices);
      const char* values = nullptr;
      if (rank == rank_) {
        char* const own = data_of(ensure_bytes(scratch_, n * row, at::kCPU));
        gather_rows(own, data_of(tables_[table]->table->touched().values), order_[table][at], row);
        values = own;
      } else if (n > 0) {
        values = data_of(incoming_[at].bytes) + begins[at];
        if (!compressed_.empty()) values = compressed_[table].decode(values, n);
      }
      sums_[table].add(indices.data(), values, n);
      begins[at] += gradient_bytes(table, n);
    }
    tables_[table]->table->set_update(sums_[table].rows());
  }
}

// Finds the field of the batch that holds the ids of all look-ups of a table. Ranks without rows cannot find it
// themselves.
void ShardedRows::compare_id_fields() {
  const auto tables = int64_t(tables_.size());
  at::Tensor mine = at::empty({tables}, at::kLong), all = at::empty({ranks_, tables}, at::kLong);
  for (size_t table = 0; table < tables_.size(); ++table) {
    int64_t found = unknown;
    for (const SparseEmbedding::Lookup& lookup : tables_[table]->table->embedding().take_lookups()) {
      if (lookup.n == 0) continue;
      int64_t one = none;
      for (size_t i = 0; i < batch_.tensors.size(); ++i) {
        const at::Tensor& tensor = batch_.tensors[i].second;
        if (tensor.scalar_type() != at::kLong || !tensor.is_cpu() || !tensor.is_contiguous()) continue;
        const auto* begin = tensor.const_data_ptr<int64_t>();
        if (lookup.ids >= begin && lookup.ids + lookup.n <= begin + tensor.numel()) one = int64_t(i);
      }
      found = found == unknown || found == one ? one : int64_t{none};
    }
    mine[int64_t(table)] = found;
  }
  group_->all_gather(all, mine, {"fields with ids", {}})->wait();
  fields_known_ = true;
  for (int64_t table = 0; table < tables; ++table) {
    int64_t& field = id_fields_[size_t(table)] = unknown;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto one = all[rank][table].item<int64_t>();
      if (one != unknown) field = field == unknown || field == one ? one : int64_t{none};
    }
    fields_known_ = fields_known_ && field != unknown;
  }
}

std::unique_ptr<RowExchange> make_row_exchange(const CommunicatorPtr& group, std::vector<ParameterPtr> tables,
                                               Compression numbers) {
  for (const ParameterPtr& table : tables)
    CONVOY_CHECK(table->table->is_sharded() == sharded(tables), table->name,
                 " must be sharded if other tables are, and only then");
  if (sharded(tables)) return std::make_unique<ShardedRows>(group, std::move(tables), numbers);
  if (!tables.empty() && !tables.front()->value.is_cpu())
    return std::make_unique<DeviceRowGather>(group, std::move(tables), numbers);
  return std::make_unique<RowGather>(group, std::move(tables), numbers);
}

}  // namespace convoy
