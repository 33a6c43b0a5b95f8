#include "strategies/sparse/local_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/log.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/replicas/bucket_reducer.h"
#include "strategies/sparse/exchange/row_messages.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {
namespace {

bool summed(const SyncGroup& group) { return group.what == SyncKind::gradients; }

}  // namespace

std::vector<ParameterPtr> summed_tables(const SyncPolicy& policy, const std::vector<ParameterPtr>& tables) {
  std::vector<ParameterPtr> chosen;
  for (const ParameterPtr& table : tables)
    if (summed(policy.groups[policy.group_of(table->name)])) chosen.push_back(table);
  return chosen;
}

LocalRows::LocalRows(CommunicatorPtr data, const SyncPolicy& policy, Update& update)
    : data_(std::move(data)), policy_(policy), update_(update) {
  std::map<size_t, std::vector<ParameterPtr>> members;
  for (size_t index = 0; index < update.tables().size(); ++index) {
    const ParameterPtr& parameter = update.tables()[index];
    const size_t group = policy.group_of(parameter->name);
    if (summed(policy.groups[group])) continue;
    CONVOY_CHECK(policy.groups[group].what == SyncKind::parameters, parameter->name,
                 " is a sparse embedding, which diloco does not support");
    const at::Tensor& value = parameter->value;
    tables_.push_back(
        {index, group, at::zeros({value.size(0)}, at::TensorOptions(at::kByte).device(value.device())), {}});
    members[group].push_back(parameter);
  }
  for (auto& [group, tables] : members)
    exchanges_[group] = make_row_exchange(data_, std::move(tables),
                                          policy.groups[group].start_after > 0 ? policy.compress : Compression::none);
}

bool LocalRows::sums_gradients(int64_t number) const {
  return tables_.size() < update_.tables().size() ||
         std::any_of(tables_.begin(), tables_.end(),
                     [&](const Table& table) { return !group(table).is_local(number); });
}

std::vector<char> LocalRows::local_tables(int64_t number) const {
  std::vector<char> local(update_.tables().size(), 0);
  for (const Table& table : tables_) local[table.index] = group(table).is_local(number);
  return local;
}

void LocalRows::exchange(int64_t number) {
  for (const Table& table : tables_)
    if (group(table).is_local(number)) take_rows({parameter(table)});
  for (auto& [group, exchange] : exchanges_)
    if (!policy_.groups[group].is_local(number)) exchange->run({});
}

void LocalRows::updated(int64_t number) {
  for (Table& table : tables_) {
    if (!group(table).is_local(number)) continue;
    const at::Tensor& rows = parameter(table)->table->update().numbers;
    table.touched.index_fill_(0, rows.to(table.touched.device()), 1);
  }
}

std::vector<at::Tensor> LocalRows::tensors(const Table& table) const {
  std::vector<at::Tensor> all{parameter(table)->value.detach()};
  for (const auto& [name, tensor] : update_.table_moments(table.index)) all.push_back(tensor);
  return all;
}

at::Tensor LocalRows::touched_by_any(const Table& table, const at::Tensor& own,
                                     const std::vector<int64_t>& counts) const {
  int64_t all = 0;
  for (int64_t count : counts) all += count;
  const bool short_numbers = number_bytes(table.touched.size(0)) == 4;
  const at::Tensor sent = own.to(short_numbers ? at::kInt : at::kLong);
  at::Tensor gathered = at::empty({all}, sent.options());
  data_->all_gather_v(gathered, sent, counts, {"rows of " + parameter(table)->name, {}})->wait();
  return std::get<0>(at::_unique2(gathered.to(at::kLong), /*sorted=*/true));
}

void LocalRows::warn_if_more_than_dense(const std::vector<const Table*>& averaged, const std::vector<int64_t>& rows,
                                        const std::vector<int64_t>& received) {
  if (warned_ || data_->rank() != 0 || data_->size() == 1) return;
  const double ring = 2.0 * (data_->size() - 1) / data_->size();
  double sent = 0, dense = 0;
  for (size_t i = 0; i < averaged.size(); ++i) {
    const Table& table = *averaged[i];
    const at::Tensor& value = parameter(table)->value;
    const double tensors = group(table).average_moments ? 1 + double(update_.table_moments(table.index).size()) : 1;
    const double row = double(value.size(1)) * double(value.element_size()) * tensors;
    sent += double(received[i] * number_bytes(value.size(0))) + ring * double(rows[i]) * row;
    dense += ring * double(value.size(0)) * row;
  }
  if (sent <= dense) return;
  warned_ = true;
  log::warning(convoy::str("sparse embeddings: ranks receive ", int64_t(sent),
                           " bytes per synchronisation, and averages of whole tables would take ", int64_t(dense),
                           "; set model.rows: false, or auto, or synchronise more often (strategy.sync.every)"));
}

void LocalRows::average(const std::function<bool(const SyncGroup&)>& wanted, const at::Tensor& fractions) {
  std::vector<Table*> due;
  for (Table& table : tables_)
    if (wanted(group(table))) due.push_back(&table);
  if (due.empty()) return;
  const auto tables = int64_t(due.size());
  const auto whole = due.front()->touched.options().dtype(at::kLong);
  std::vector<at::Tensor> own;
  std::vector<int64_t> lengths;
  for (const Table* table : due) {
    own.push_back(at::nonzero(table->touched).view({-1}));
    lengths.push_back(own.back().numel());
  }
  at::Tensor counts = at::empty({data_->size(), tables}, whole);
  data_->all_gather(counts, at::tensor(lengths, at::kLong).to(whole.device()), {"numbers of rows", {}})->wait();
  counts = counts.cpu();
  std::vector<int64_t> averaged_rows, received;
  for (int64_t i = 0; i < tables; ++i) {
    Table& table = *due[size_t(i)];
    const at::Tensor column = counts.select(1, i).contiguous();
    const int64_t* begin = column.const_data_ptr<int64_t>();
    const at::Tensor rows = touched_by_any(table, own[size_t(i)], std::vector<int64_t>(begin, begin + data_->size()));
    table.touched.zero_();
    averaged_rows.push_back(rows.numel());
    received.push_back(column.sum().item<int64_t>() - begin[data_->rank()]);
    if (rows.numel() == 0) continue;
    update_.flush_rows(table.index, rows);
    std::vector<at::Tensor> averaged = tensors(table);
    if (!group(table).average_moments) averaged.resize(1);
    const at::Tensor fraction = fractions.select(0, int64_t(table.group));
    for (at::Tensor& tensor : averaged) {
      at::Tensor part = tensor.index_select(0, rows);
      part.mul_(fraction.to(part.device(), part.scalar_type()));
      data_->all_reduce(part, ReduceOp::sum, {"averages of " + parameter(table)->name, {}})->wait();
      tensor.index_copy_(0, rows, part);
    }
  }
  warn_if_more_than_dense({due.begin(), due.end()}, averaged_rows, received);
}

bool LocalRows::drifted(int64_t made) const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [&](const Table& table) { return made > group(table).start_after; });
}

void LocalRows::put_average(int64_t made, const at::Tensor& fractions) {
  for (Table& table : tables_) {
    if (made <= group(table).start_after) continue;
    const at::Tensor fraction = fractions.select(0, int64_t(table.group));
    for (at::Tensor& tensor : tensors(table)) {
      table.local.push_back(tensor.clone());
      tensor.mul_(fraction.to(tensor.device(), tensor.scalar_type()));
      data_->all_reduce(tensor, ReduceOp::sum, {"average of " + parameter(table)->name, {}})->wait();
    }
  }
}

void LocalRows::restore() {
  for (Table& table : tables_) {
    const std::vector<at::Tensor> tensors_now = tensors(table);
    for (size_t i = 0; i < table.local.size(); ++i) at::Tensor(tensors_now[i]).copy_(table.local[i]);
    table.local.clear();
  }
}

void LocalRows::visit(const StateVisitor& visit) const {
  const int replica = data_->rank();
  for (const auto& [group, exchange] : exchanges_) exchange->visit(visit);
  for (const Table& table : tables_) {
    const Parameter& parameter = *this->parameter(table);
    const std::vector<at::Tensor> shown = table.local.empty() ? tensors(table) : table.local;
    visit_shadow(parameter, StateKind::parameter, "", shown.front(), replica, true, visit);
    const auto moments = update_.table_moments(table.index);
    for (size_t i = 0; i < moments.size(); ++i)
      visit_shadow(parameter, StateKind::moment, moments[i].first, shown[i + 1], replica, true, visit);
    StateEntry entry = state_entry(parameter.name + ".touched", StateKind::counter, table.touched);
    entry.replica = replica;
    visit(entry);
  }
}

}  // namespace convoy
