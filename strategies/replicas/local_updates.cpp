#include "strategies/replicas/local_updates.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/model_checks.h"
#include "strategies/common/model/visit_parts.h"
#include "strategies/replicas/bucket_reducer.h"
#include "strategies/sparse/exchange/row_exchange.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {

// --- LocalRows ---

namespace {

bool summed(const SyncGroup& group) { return group.what == SyncKind::gradients; }

StateEntry replica_entry(const std::string& name, StateKind kind, const at::Tensor& tensor, int replica, bool owner) {
  StateEntry entry = state_entry(name, kind, tensor, owner);
  entry.replica = replica;
  return entry;
}

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
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
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
    visit(replica_entry(parameter.name + ".touched", StateKind::counter, table.touched, replica, true));
  }
}

// --- LocalUpdates ---

LocalUpdates::LocalUpdates(const Context& context, SyncPolicy policy, const std::vector<ModelPart*>& parts,
                           Update& update, BufferSync& buffers)
    : policy_(std::move(policy)),
      context_(context),
      data_(context.axis("data")),
      pipeline_parallel_(context.axis("pipeline")->size() > 1),
      parts_(parts),
      buffers_(buffers_of(parts)),
      update_(update),
      buffer_sync_(buffers),
      rows_(data_, policy_, update) {
  if (!any()) return;
  const auto real = at::TensorOptions(at::kDouble).device(context.devices.front());
  local_header_ = at::zeros({2}, real);
  weight_since_ = at::zeros({int64_t(policy_.groups.size())}, real);
}

std::vector<std::vector<int>> LocalUpdates::buckets(const std::vector<ParameterPtr>& parameters,
                                                    const std::vector<int>& order, double first, double cap) const {
  if (!any()) return fill_buckets(parameters, order, first, cap);
  std::vector<size_t> groups(policy_.groups.size());
  std::iota(groups.begin(), groups.end(), 0);
  // Puts groups with summed gradients first. The loss travels with the first bucket, so that bucket must be sent as
  // long as any is.
  std::stable_sort(groups.begin(), groups.end(), [&](size_t a, size_t b) {
    const SyncGroup &one = policy_.groups[a], &other = policy_.groups[b];
    return summed(one) != summed(other) ? summed(one) : one.start_after > other.start_after;
  });
  std::vector<std::vector<int>> buckets;
  for (size_t group : groups) {
    std::vector<int> members;
    for (int parameter : order)
      if (policy_.group_of(parameters[size_t(parameter)]->name) == group) members.push_back(parameter);
    if (members.empty()) continue;
    for (std::vector<int>& bucket : fill_buckets(parameters, members, buckets.empty() ? first : cap, cap))
      buckets.push_back(std::move(bucket));
  }
  if (buckets.empty()) buckets.emplace_back();
  return buckets;
}

void LocalUpdates::attach(const FlatParameters* before, const FlatParameters& flat) {
  groups_.clear();
  for (const FlatParameters::Bucket& bucket : flat.buckets())
    groups_.push_back(bucket.parameters.empty()
                          ? policy_.groups.size() - 1
                          : policy_.group_of(flat.parameters()[size_t(bucket.parameters.front())]->name));
  flat_ = &flat;
  if (!any()) return;
  CONVOY_CHECK(!averaged_, "parameters get a new layout while averages replace them");
  const auto outer = [this](int bucket) { return group(bucket).what == SyncKind::diloco; };
  before_.attach(before, flat, outer);
  momentum_.attach(before, flat, outer);
  if (before == nullptr) update_.set_local_only({{}, {}, local_header_, true, data_});
}

bool LocalUpdates::ever_shared(int bucket) const { return !group(bucket).is_local(0); }

void LocalUpdates::begin(bool first) {
  if (!any()) return;
  at::NoGradGuard no_grad;
  if (first) local_header_.zero_();
  if (!averaged_) return;
  for (size_t bucket = 0; bucket < groups_.size(); ++bucket)
    if (local_values_.has(int(bucket))) flat_->bucket_values(int(bucket)).copy_(local_values_.bucket(int(bucket)));
  for (auto& [slot, own] : local_moments_) {
    const auto moments = update_.slot_moments(slot);
    for (size_t i = 0; i < own.size(); ++i) at::Tensor(moments[i].second).copy_(own[i].second);
  }
  for (size_t i = 0; i < local_buffers_.size(); ++i) buffers_[i].value.copy_(local_buffers_[i].second);
  rows_.restore();
  local_values_.clear();
  local_moments_.clear();
  local_buffers_.clear();
  averaged_ = false;
}

void LocalUpdates::add_loss(const at::Tensor& weight, const at::Tensor& sum) {
  if (!any()) return;
  local_header_.select(0, 0).add_(weight.to(local_header_.options()));
  local_header_.select(0, 1).add_(sum.to(local_header_.options()));
}

std::vector<char> LocalUpdates::local_buckets() const {
  std::vector<char> local(groups_.size(), 0);
  for (size_t bucket = 0; bucket < groups_.size(); ++bucket)
    local[bucket] = group(int(bucket)).is_local(update_.made());
  return local;
}

bool LocalUpdates::sums_gradients() const {
  const int64_t number = update_.made();
  const auto shared = [number](const SyncGroup& group) { return !group.is_local(number); };
  if (rows_.sums_gradients(number)) return true;
  // Other ranks of this replica may have parameters of a group when this rank has none.
  if (pipeline_parallel_) return std::any_of(policy_.groups.begin(), policy_.groups.end(), shared);
  return std::any_of(groups_.begin(), groups_.end(), [&](size_t group) { return shared(policy_.groups[group]); });
}

bool LocalUpdates::buffers_drifted(int64_t made) const {
  if (made == 0) return false;
  return std::all_of(groups_.begin(), groups_.end(), [&](size_t group) {
    return policy_.groups[group].is_local(made - 1) && !policy_.groups[group].due(made - 1);
  });
}

void LocalUpdates::prepare() {
  if (!any()) return;
  at::NoGradGuard no_grad;
  std::vector<char> slots(flat_->slots().size(), 0);
  const std::vector<char> local = local_buckets();
  for (size_t bucket = 0; bucket < local.size(); ++bucket) {
    for (int slot : flat_->buckets()[bucket].slots) slots[size_t(slot)] = local[bucket];
    const auto index = int(bucket);
    if (before_.has(index) && update_.made() == group(index).start_after)
      before_.bucket(index).copy_(flat_->bucket_values(index));
  }
  update_.set_local_only(
      {std::move(slots), rows_.local_tables(update_.made()), local_header_, sums_gradients(), data_});
}

void LocalUpdates::updated(const UpdateStatistics& statistics) {
  if (!any()) return;
  at::NoGradGuard no_grad;
  if (statistics.local_finite.defined()) {
    at::Tensor finite = statistics.local_finite, header = local_header_;
    int64_t step = parts_.front()->state()->step;
    // On CUDA read the flag of the previous update, so that the host never waits for the current one.
    if (finite.is_cuda()) {
      header = header.clone();
      std::swap(finite, pending_finite_);
      std::swap(header, pending_header_);
      --step;
    }
    check(finite, header, step);
  }
  const int64_t number = update_.made() - 1;
  for (size_t group = 0; group < policy_.groups.size(); ++group)
    if (policy_.groups[group].is_local(number))
      weight_since_.select(0, int64_t(group)).add_(local_header_.select(0, 0));
  rows_.updated(number);
  synchronise(number);
}

// Other ranks do not know the failure of this rank; its error ends the others.
void LocalUpdates::check(const at::Tensor& finite, const at::Tensor& header, int64_t step) const {
  if (!finite.defined() || finite.item<bool>()) return;
  const bool loss = !at::isfinite(header).all().item<bool>();
  throw Error(Failure::training, loss ? "the loss of rank " : "a gradient of rank ", context_.rank,
              " is not finite at step ", step, ", between two synchronisations (strategy.sync)",
              "; the update was not applied and nothing was saved. ", divergence_advice(context_.config));
}

// Weight of this rank's values in each average, by group: its share of the rows' weight since the last synchronisation.
at::Tensor LocalUpdates::fractions() const {
  at::Tensor all = weight_since_.clone();
  data_->all_reduce(all, ReduceOp::sum, {"weights of replicas", {}})->wait();
  return at::where(all > 0, weight_since_ / all, at::full_like(all, 1.0 / data_->size()));
}

std::vector<int> LocalUpdates::buckets_of(const std::function<bool(const SyncGroup&)>& wanted) const {
  std::vector<int> buckets;
  for (size_t bucket = 0; bucket < groups_.size(); ++bucket)
    if (wanted(policy_.groups[groups_[bucket]])) buckets.push_back(int(bucket));
  return buckets;
}

void LocalUpdates::average(const std::vector<int>& values, const std::vector<int>& moments,
                           const at::Tensor& fractions) {
  std::vector<WorkPtr> works;
  const auto launch = [&](at::Tensor tensor, const at::Tensor& fraction, const std::string& name) {
    tensor.mul_(fraction.to(tensor.device(), tensor.scalar_type()));
    works.push_back(data_->all_reduce(tensor, ReduceOp::sum, {name, {}}));
  };
  const auto fraction = [&](int bucket) { return fractions.select(0, int64_t(group_of(bucket))); };
  for (int bucket : values)
    launch(flat_->bucket_values(bucket), fraction(bucket), convoy::str("parameters, bucket ", bucket));
  for (int bucket : moments)
    for (int slot : flat_->buckets()[size_t(bucket)].slots)
      for (const auto& [name, tensor] : update_.slot_moments(slot))
        launch(tensor, fraction(bucket), convoy::str(name, ", bucket ", bucket));
  for (const WorkPtr& work : works) work->wait();
}

void LocalUpdates::outer_step(int bucket) {
  const SyncGroup& group = this->group(bucket);
  at::Tensor values = flat_->bucket_values(bucket);
  at::Tensor &before = before_.bucket(bucket), &momentum = momentum_.bucket(bucket);
  const at::Tensor change = before - values;
  momentum.mul_(group.outer_momentum).add_(change);
  before.sub_(group.nesterov ? change.add_(momentum, group.outer_momentum) : momentum, group.outer_rate);
  values.copy_(before);
}

void LocalUpdates::synchronise_loss_scale() {
  for (const auto& [name, tensor] : update_.counters())
    if (name == "loss_scale" || name == "loss_scale_streak")
      data_->all_reduce(tensor, ReduceOp::min, {name, {}})->wait();
}

void LocalUpdates::synchronise(int64_t number) {
  const auto due = [number](const SyncGroup& group) { return group.due(number); };
  if (std::none_of(policy_.groups.begin(), policy_.groups.end(), due)) return;
  const at::Tensor fractions = this->fractions();
  average(buckets_of(due), buckets_of([&](const SyncGroup& group) { return due(group) && group.average_moments; }),
          fractions);
  rows_.average(due, fractions);
  for (int bucket : buckets_of(due))
    if (group(bucket).what == SyncKind::diloco) outer_step(bucket);
  for (size_t group = 0; group < policy_.groups.size(); ++group)
    if (due(policy_.groups[group])) weight_since_.select(0, int64_t(group)).zero_();
  synchronise_loss_scale();
}

void LocalUpdates::save_local(const std::vector<int>& values, const std::vector<int>& moments) {
  local_values_.attach(nullptr, *flat_,
                       [&](int bucket) { return std::find(values.begin(), values.end(), bucket) != values.end(); });
  for (int bucket : values) local_values_.bucket(bucket).copy_(flat_->bucket_values(bucket));
  for (int bucket : moments)
    for (int slot : flat_->buckets()[size_t(bucket)].slots)
      for (const auto& [name, tensor] : update_.slot_moments(slot))
        local_moments_[slot].emplace_back(name, tensor.clone());
}

void LocalUpdates::flush() {
  if (!any() || averaged_) return;
  at::NoGradGuard no_grad;
  check(pending_finite_, pending_header_, parts_.front()->state()->step);
  pending_finite_.reset();
  const int64_t made = update_.made();
  const auto drifted = [made](const SyncGroup& group) { return group.drifted(made); };
  const auto moments = [made](const SyncGroup& group) { return group.moments_drifted(made); };
  if (rows_.drifted(made) || std::any_of(policy_.groups.begin(), policy_.groups.end(), moments)) {
    const at::Tensor fractions = this->fractions();
    save_local(buckets_of(drifted), buckets_of(moments));
    average(buckets_of(drifted), buckets_of(moments), fractions);
    rows_.put_average(made, fractions);
    averaged_ = true;
  }
  if (!buffers_drifted(made)) return;
  for (const NamedBuffer& buffer : buffers_) local_buffers_.emplace_back(buffer.name, buffer.value.clone());
  buffer_sync_.start();
  buffer_sync_.finish();
  averaged_ = true;
}

void LocalUpdates::visit(const StateVisitor& visit) {
  if (!any()) return;
  const int replica = data_->rank();
  for (size_t index = 0; index < flat_->parameters().size(); ++index) {
    const Parameter& parameter = *flat_->parameters()[index];
    const FlatParameters::Location& location = flat_->location(index);
    if (summed(group(location.bucket))) continue;
    const at::Tensor kept = local_values_.view(*flat_, index);
    visit_shadow(parameter, StateKind::parameter, "", kept.defined() ? kept : parameter.value, replica, true, visit);
    const auto local = local_moments_.find(location.slot);
    auto moments = update_.moments(index);
    for (size_t i = 0; i < moments.size(); ++i) {
      const at::Tensor tensor =
          local == local_moments_.end() ? moments[i].second : flat_->view(index, local->second[i].second);
      visit_shadow(parameter, StateKind::moment, moments[i].first, tensor, replica, true, visit);
    }
    const at::Tensor before = before_.view(*flat_, index);
    if (!before.defined()) continue;
    visit_shadow(parameter, StateKind::moment, "outer_value", before, -1, replica == 0, visit);
    visit_shadow(parameter, StateKind::moment, "outer_momentum", momentum_.view(*flat_, index), -1, replica == 0,
                 visit);
  }
  rows_.visit(visit);
  const bool counts = parts_.front()->store()->counts;
  for (size_t i = 0; i < buffers_.size(); ++i)
    visit(replica_entry(buffers_[i].name, StateKind::buffer,
                        local_buffers_.empty() ? buffers_[i].value : local_buffers_[i].second, replica, counts));
  // All ranks of a replica have the same counters.
  const bool first = context_.mesh.coordinate(context_.rank, "pipeline") == 0 &&
                     context_.mesh.coordinate(context_.rank, "tensor") == 0;
  for (const auto& [name, tensor] : update_.counters())
    visit(replica_entry(name, StateKind::counter, tensor, replica, first));
  visit(replica_entry("own_updates", StateKind::counter, update_.local_count(), replica, first));
  visit(replica_entry("weight_since_agreement", StateKind::counter, weight_since_, replica, first));
}

}  // namespace convoy
