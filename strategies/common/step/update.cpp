#include "strategies/common/step/update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/hypot.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/optim/loops.h"
#include "core/tensors/tensor_memory.h"
#include "strategies/common/layers/sparse_table.h"

namespace convoy {
namespace {

// The value of a count on the CPU.
int64_t& host_count(const at::Tensor& count) { return *count.mutable_data_ptr<int64_t>(); }

}  // namespace

Update::Update(const Context& context, int64_t every, std::vector<CommunicatorPtr> cut, OptimizerFactory factory)
    : section_(context.config.optimizer),
      factory_(std::move(factory)),
      steps_{context.steps_per_epoch, every},
      schedule_(section_, steps_.of(context.total_steps), steps_.of(std::max<int64_t>(context.steps_per_epoch, 1))),
      cut_(std::move(cut)) {
  clip_norm_ = optimizer_options(section_).clip_norm;
  const at::Device device = context.devices.front();
  const auto real = at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device);
  count_ = at::zeros({1}, real.dtype(at::kLong));
  sums_ = at::zeros({3}, real);
  scalars_.learning_rate = at::zeros({1}, real);
  scalars_.gradient_scale = at::zeros({1}, real);
  mean_scale_ = at::zeros({1}, real);
  scalars_.step = at::zeros({1}, count_.options());
  scalars_.apply = at::ones({1}, real.dtype(at::kBool));
  if (context.config.precision == "fp16") scaler_.emplace(context.config.strategy.options.section("loss_scale"), real);
}

void Update::set_local_only(LocalOnly local_only) {
  if (!local_only_.header.defined()) {
    local_count_ = at::full_like(count_, -1);
    sums_ = at::zeros({5}, sums_.options());
    local_scalars_ = {scalars_.learning_rate, at::zeros_like(scalars_.step), at::zeros_like(scalars_.gradient_scale),
                      at::ones_like(scalars_.apply)};
  }
  const auto any = [](const std::vector<char>& list) { return std::find(list.begin(), list.end(), 1) != list.end(); };
  local_only_ = std::move(local_only);
  has_local_ = any(local_only_.slots) || any(local_only_.tables);
  has_summed_ = local_only_.has_summed || !has_local_;
}

std::unique_ptr<Optimizer> Update::optimizer_for(const std::vector<UpdateSlot>& slots) const {
  auto optimizer = factory_ ? factory_() : make_optimizer(section_);
  for (const UpdateSlot& slot : slots)
    optimizer->add_slot(slot.values, {1, slot.group.learning_rate_factor, slot.group.weight_decay, slot.pieces});
  return optimizer;
}

void Update::attach(const FlatParameters& flat) {
  at::NoGradGuard no_grad;
  std::vector<UpdateSlot> slots;
  for (int slot = 0; slot < int(flat.slots().size()); ++slot) {
    const FlatParameters::Slot& range = flat.slots()[size_t(slot)];
    slots.push_back({flat.values(slot), flat.gradients(slot), range.group, range.counted});
  }
  for (size_t parameter = 0; parameter < flat.parameters().size(); ++parameter) {
    const FlatParameters::Location& location = flat.location(parameter);
    const at::Tensor& value = flat.parameters()[parameter]->value;
    slots[size_t(location.slot)].pieces.push_back(
        {value, 0, value.numel(), location.offset - flat.slots()[size_t(location.slot)].begin});
  }
  auto optimizer = optimizer_for(slots);
  if (flat_ != nullptr) {
    for (size_t parameter = 0; parameter < flat.parameters().size(); ++parameter) {
      const auto before = moments(parameter);
      auto after = optimizer->moments(flat.location(parameter).slot);
      for (size_t i = 0; i < before.size(); ++i) flat.view(parameter, after[i].second).copy_(before[i].second);
    }
  }
  optimizer_ = std::move(optimizer);
  slots_ = std::move(slots);
  header_ = flat.header();
  flat_ = &flat;
}

void Update::attach(std::vector<UpdateSlot> slots, at::Tensor header) {
  optimizer_ = optimizer_for(slots);
  slots_ = std::move(slots);
  header_ = std::move(header);
  flat_ = nullptr;
}

void Update::attach_tables(std::vector<ParameterPtr> tables) {
  tables_ = std::move(tables);
  if (tables_.empty()) return;
  row_optimizer_ = make_row_optimizer(section_);
  const OptimizerOptions options = optimizer_options(section_);
  for (const ParameterPtr& table : tables_) {
    const GroupSettings group = group_settings(options, table->name);
    table->table->connect(row_optimizer_.get(), {1, group.learning_rate_factor, group.weight_decay});
  }
}

at::Tensor Update::scale_of(const at::Tensor& header, double nominal) const {
  const at::Tensor weight = header.to(sums_.options()).narrow(0, 0, 1);
  // If no rank had a row with weight, the gradients are zero, and so may be their scale.
  at::Tensor scale = at::where(weight > 0, nominal / weight, at::zeros_like(weight));
  return scaler_ ? scale.div_(scaler_->scale()) : scale;
}

void Update::begin(double nominal) {
  at::NoGradGuard no_grad;
  copied_ = false;
  if (sums_.is_cpu()) return begin_on_host(nominal);
  scalars_.gradient_scale.copy_(scale_of(header_, nominal));
  if (has_local_) {
    local_scalars_.gradient_scale.copy_(scale_of(local_only_.header, nominal));
    local_count_.copy_(at::where(local_count_ < 0, count_, local_count_));
  }
  mean_scale_.copy_(scalars_.gradient_scale);
  sums_.zero_();
}

void Update::set_rate() {
  rate_is_set_ = true;
  next_rate();
}

double Update::rate() const {
  if (const std::optional<double> own = optimizer_->learning_rate()) return *own;
  return base_rate_ ? *base_rate_ : schedule_.learning_rate(updates_);
}

void Update::next_rate() {
  const double rate = this->rate();
  ++updates_;
  if (scalars_.learning_rate.is_cpu())
    *scalars_.learning_rate.mutable_data_ptr<double>() = rate;
  else
    scalars_.learning_rate.fill_(rate);
}

void Update::reduced(int bucket) {
  for (int slot : flat_->buckets()[size_t(bucket)].slots) reduced_slot(slot);
}

void Update::reduced_slot(int slot) {
  const UpdateSlot& range = slots_[size_t(slot)];
  add_sums(range.gradients, range.counted, is_local(size_t(slot)) ? 3 : 0);
}

void Update::reduced_rows(bool finite, bool log_step) {
  Communicator* const group = tables_.empty() ? nullptr : tables_.front()->table->update_group();
  norm_known_ = group == nullptr || !finite || log_step || clip_norm_ > 0;
  if (!norm_known_) return;
  if (group == nullptr) {
    for (size_t table = 0; table < tables_.size(); ++table)
      add_sums(tables_[table]->table->update().values, tables_[table]->counted, is_local_table(table) ? 3 : 0);
    return;
  }
  // All other sums are equal on all ranks of the group. No rank of it has local tables.
  const at::Tensor others = sums_.clone();
  sums_.zero_();
  for (const ParameterPtr& table : tables_) add_sums(table->table->update().values, table->counted, 0);
  group->all_reduce(sums_, ReduceOp::sum, {"gradient norm of rows", {}})->wait();
  sums_.add_(others);
}

void Update::add_sums(const at::Tensor& gradients, bool counted, int64_t first) {
  at::NoGradGuard no_grad;
  if (sums_.is_cpu() && gradients.is_cpu()) {
    const HostSquareSum part = host_square_sum(gradients);
    double* sums = sums_.mutable_data_ptr<double>();
    if (counted) sums[first] += part.sum;
    sums[first + 1] += part.finite ? 0 : 1;
    return;
  }
  const at::Device here = sums_.device();
  const SquareSum part = square_sum(gradients);
  if (counted) sums_.select(0, first).add_(part.sum[0].to(here));
  sums_.select(0, first + 1).add_(part.finite[0].logical_not().to(here));
}

// Copies of the scalars for a rank's further devices.
UpdateScalars Update::scalars_on(at::Device device, const UpdateScalars& scalars) {
  if (device == scalars.apply.device()) return scalars;
  return {scalars.learning_rate.to(device), scalars.step.to(device), scalars.gradient_scale.to(device),
          scalars.apply.to(device)};
}

// Like torch's clip_grad_norm_, which needs no special case for a norm of zero.
void Update::clip(UpdateScalars& scalars, const at::Tensor& norm) const {
  if (clip_norm_ > 0) scalars.gradient_scale.mul_((clip_norm_ / (norm + 1e-6)).clamp_max_(1));
}

void Update::update_slots() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const at::Tensor& gradients = slots_[slot].gradients;
    optimizer_->update(int(slot), {gradients, {}, {}},
                       scalars_on(gradients.device(), is_local(slot) ? local_scalars_ : scalars_));
  }
  optimizer_->finish();
  for (size_t table = 0; table < tables_.size(); ++table) {
    const TableRows& rows = tables_[table]->table->update();
    row_optimizer_->update(int(table), rows.numbers, rows.values,
                           scalars_on(rows.values.device(), is_local_table(table) ? local_scalars_ : scalars_));
  }
}

UpdateStatistics Update::finish() {
  at::NoGradGuard no_grad;
  const bool host = sums_.is_cpu();
  const at::Tensor& header = has_summed_ ? header_ : local_only_.header;
  // If the loss of one rank is not finite, no rank updates.
  if (!host)
    sums_.select(0, 2).add_(at::isfinite(header).all().logical_not().to(sums_.device()));
  else if (!std::isfinite(number_at(header, 0)) || !std::isfinite(number_at(header, 1)))
    sums_.mutable_data_ptr<double>()[2] += 1;
  for (const CommunicatorPtr& group : cut_) group->all_reduce(sums_, ReduceOp::sum, {"gradient norm", {}})->wait();
  // All ranks use one loss scale for summed gradients, so a rank's local flag counts for all.
  if (scaler_ && has_local_ && has_summed_)
    local_only_.group->all_reduce(sums_.narrow(0, 4, 1), ReduceOp::sum, {"local gradients", {}})->wait();
  if (!rate_is_set_) next_rate();
  ++made_;
  updated_ = true;
  return host ? finish_on_host() : finish_on_device();
}

UpdateStatistics Update::finish_on_device() {
  const at::Tensor loss_finite = sums_.narrow(0, 2, 1) == 0;
  const at::Tensor local_finite = has_local_ ? sums_.narrow(0, 4, 1) == 0 : at::ones_like(loss_finite);
  const at::Tensor shared_finite = (sums_.narrow(0, 1, 1) == 0).logical_and(loss_finite);
  at::Tensor norm = sums_.narrow(0, 0, 1).sqrt().mul_(scalars_.gradient_scale);
  scalars_.apply.copy_(shared_finite.logical_and(local_finite));
  clip(scalars_, norm);
  if (has_local_) {
    const at::Tensor local_norm = sums_.narrow(0, 3, 1).sqrt().mul_(local_scalars_.gradient_scale);
    at::logical_and_out(local_scalars_.apply, scalars_.apply, local_scalars_.gradient_scale > 0);
    clip(local_scalars_, local_norm);
    norm = at::hypot(norm, local_norm);
    at::add_out(local_scalars_.step, local_count_, 1);
  }
  at::add_out(scalars_.step, count_, 1);
  update_slots();
  count_.add_(scalars_.apply);
  if (has_local_)
    local_count_.add_(local_scalars_.apply);
  else if (local_only_.header.defined())
    local_count_.copy_(count_);
  // Local flags are not summed, so they may differ between ranks.
  UpdateStatistics statistics{norm[0],
                              (has_local_ && !has_summed_ ? at::ones_like(shared_finite) : shared_finite)[0].clone(),
                              scalars_.learning_rate,
                              {}};
  if (has_local_)
    statistics.local_finite = (has_summed_ ? local_finite : local_finite.logical_and(shared_finite))[0].clone();
  if (scaler_) excuse(loss_finite, statistics);
  return statistics;
}

void Update::excuse(const at::Tensor& loss_finite, UpdateStatistics& statistics) {
  statistics.skipped = scaler_->excuses(loss_finite)[0].logical_and(scalars_.apply[0].logical_not());
  statistics.finite = statistics.finite.logical_or(statistics.skipped);
  if (has_local_) statistics.local_finite = statistics.local_finite.logical_or(statistics.skipped);
  scaler_->update(scalars_.apply);
}

// The *_on_host functions do the arithmetic of the tensor versions in the same order, on the CPU and without tensors:
// dozens of kernels on single numbers would cost a tenth of a light step.
void Update::begin_on_host(double nominal) {
  const double scale = host_scale_of(header_, nominal);
  *scalars_.gradient_scale.mutable_data_ptr<double>() = scale;
  *mean_scale_.mutable_data_ptr<double>() = scale;
  std::fill_n(sums_.mutable_data_ptr<double>(), sums_.numel(), 0.0);
  if (!has_local_) return;
  *local_scalars_.gradient_scale.mutable_data_ptr<double>() = host_scale_of(local_only_.header, nominal);
  int64_t& local_count = *local_count_.mutable_data_ptr<int64_t>();
  if (local_count < 0) local_count = host_count(count_);
}

double Update::host_scale_of(const at::Tensor& header, double nominal) const {
  const double weight = number_at(header, 0);
  // Exactly 1 for equal numbers, which spares a torch optimizer a sweep.
  const double scale = weight == nominal ? 1 : weight > 0 ? 1 / weight * nominal : 0;
  return scaler_ ? scale / number_at(scaler_->scale(), 0) : scale;
}

UpdateStatistics Update::finish_on_host() {
  const double* const sums = sums_.const_data_ptr<double>();
  const bool loss_finite = sums[2] == 0, local_finite = !has_local_ || sums[4] == 0;
  const bool shared_finite = sums[1] == 0 && loss_finite, apply = shared_finite && local_finite;
  *scalars_.apply.mutable_data_ptr<bool>() = apply;
  double norm = clipped_on_host(scalars_, sums[0]);
  if (has_local_) {
    *local_scalars_.apply.mutable_data_ptr<bool>() = apply && number_at(local_scalars_.gradient_scale, 0) > 0;
    norm = std::hypot(norm, clipped_on_host(local_scalars_, sums[3]));
    host_count(local_scalars_.step) = host_count(local_count_) + 1;
  }
  host_count(scalars_.step) = host_count(count_) + 1;
  update_slots();
  host_count(count_) += apply ? 1 : 0;
  if (has_local_)
    host_count(local_count_) += *local_scalars_.apply.const_data_ptr<bool>() ? 1 : 0;
  else if (local_only_.header.defined())
    host_count(local_count_) = host_count(count_);
  const auto flag = [&](bool value) { return at::scalar_tensor(value, scalars_.apply.options()); };
  UpdateStatistics statistics{norm_known_ ? at::scalar_tensor(norm, sums_.options()) : at::Tensor(),
                              flag((has_local_ && !has_summed_) || shared_finite),
                              scalars_.learning_rate,
                              {},
                              {}};
  if (has_local_) statistics.local_finite = flag(has_summed_ ? local_finite : local_finite && shared_finite);
  if (scaler_) excuse(at::full({1}, loss_finite, scalars_.apply.options()), statistics);
  return statistics;
}

// Norm of the mean gradient; reduces the scale if the norm exceeds clip_norm.
double Update::clipped_on_host(UpdateScalars& scalars, double squares) const {
  double& scale = *scalars.gradient_scale.mutable_data_ptr<double>();
  const double norm = std::sqrt(squares) * scale;
  if (clip_norm_ > 0) scale *= std::min(1 / (norm + 1e-6) * clip_norm_, 1.0);
  return norm;
}

void Update::renumbered(int64_t steps) { updates_ = steps_.of(steps); }

NamedTensors Update::moments(size_t parameter) {
  auto moments = optimizer_->moments(flat_->location(parameter).slot);
  for (auto& entry : moments) entry.second = flat_->view(parameter, entry.second);
  return moments;
}

at::Tensor Update::table_gradient(size_t table) const {
  if (is_local_table(table)) return {};  // each rank has a different one
  const SparseTable& rows = *tables_[table]->table;
  const at::Tensor values = mean(rows.update().values);
  return values.defined() ? rows.dense(rows.update().numbers, values) : values;
}

void Update::flush() {
  copied_ = false;
  for (size_t table = 0; table < tables_.size(); ++table) row_optimizer_->flush(int(table));
}

void Update::flush_and_copy() {
  for (size_t table = 0; table < tables_.size(); ++table) row_optimizer_->flush_and_copy(int(table), copies_[table]);
  copied_ = true;
}

bool Update::prepare_copies(int64_t most, int ranks, const std::function<bool(bool)>& agree) {
  if (tables_.empty() || !sums_.is_cpu() || copies_refused_) return false;
  if (!copies_.empty()) return true;
  int64_t bytes = 0;
  for (size_t table = 0; table < tables_.size(); ++table)
    bytes += int64_t(tables_[table]->value.nbytes() * (1 + table_moments(table).size()));
  if (!agree(bytes / ranks <= most)) return false;
  bool reserved = true;
  try {
    for (size_t table = 0; table < tables_.size(); ++table)
      copies_.push_back(row_optimizer_->memory_for_copies(int(table)));
  } catch (const Error&) {
    reserved = false;
  }
  if (agree(reserved)) return true;
  if (!reserved)
    log::warning(convoy::str("no memory for copies of sparse embeddings (", human_bytes(double(bytes)),
                             "): saves hold the training longer than they could"));
  copies_.clear();
  copies_refused_ = true;
  return false;
}

at::Tensor Update::table_copy(size_t table, size_t tensor) const {
  return copied_ && tensor < copies_[table].size() ? copies_[table][tensor] : at::Tensor();
}

at::Tensor Update::gradient(size_t parameter) const {
  if (is_local(size_t(flat_->location(parameter).slot))) return {};  // each rank has a different one
  return mean(flat_->parameters()[parameter]->gradient);
}

at::Tensor Update::mean(const at::Tensor& gradients) const {
  if (!updated_) return {};
  at::NoGradGuard no_grad;
  at::Tensor scale = mean_scale_;
  // LibTorch's fused kernels and torch optimizers leave the gradients scaled.
  if (gradients.is_cuda() || optimizer_->scales_gradients())
    scale = at::where(scale > 0, scale / scalars_.gradient_scale, scale);
  return gradients * scale.to(gradients.options());
}

NamedTensors Update::counters() const {
  NamedTensors all{{"updates", count_}};
  if (scaler_)
    for (const auto& entry : scaler_->state()) all.push_back(entry);
  for (const auto& entry : optimizer_->counters()) all.push_back(entry);
  return all;
}

void Update::restored() {
  copied_ = false;
  updates_ = count_.cpu()[0].item<int64_t>();
  optimizer_->restored(updates_);
  if (scaler_) updates_ += scaler_->skipped().cpu()[0].item<int64_t>();
  made_ = updates_;
  for (size_t table = 0; table < tables_.size(); ++table) row_optimizer_->restored(int(table));
}

}  // namespace convoy
