#include "strategies/parts/update.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/hypot.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/optim/norm.h"
#include "strategies/parts/rows/row_table.h"

namespace convoy {
namespace {

Schedule schedule_of(const Context& context, const UpdateCount& updates) {
  return Schedule(context.config.optimizer, updates.of(context.total_steps),
                  updates.of(std::max<int64_t>(context.steps_per_epoch, 1)));
}

// Of a CPU tensor of whatever floating dtype, without a kernel for the usual ones.
double number(const at::Tensor& tensor, int64_t index) {
  if (tensor.scalar_type() == at::kFloat) return static_cast<double>(tensor.const_data_ptr<float>()[index]);
  if (tensor.scalar_type() == at::kDouble) return tensor.const_data_ptr<double>()[index];
  return tensor[index].item<double>();
}

template <class T>
at::Tensor host_scalar(T value, const at::TensorOptions& options) {
  at::Tensor scalar = at::empty({}, options);
  *scalar.mutable_data_ptr<T>() = value;
  return scalar;
}

// Of a count that lies on the CPU.
int64_t& host_count(const at::Tensor& count) { return *count.mutable_data_ptr<int64_t>(); }

}  // namespace

Update::Update(const Context& context, int64_t every, std::vector<CommunicatorPtr> cut)
    : optimizer_options_(context.config.optimizer),
      steps_{context.steps_per_epoch, every},
      schedule_(schedule_of(context, steps_)),
      cut_(std::move(cut)) {
  const Options& options = optimizer_options_.options;
  if (options.has("clip_norm")) clip_norm_ = options.real("clip_norm");
  const at::Device device = context.devices.front();
  const auto real = at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device);
  count_ = at::zeros({1}, real.dtype(at::kLong));
  figures_ = at::zeros({3}, real);
  scalars_.learning_rate = at::zeros({1}, real);
  scalars_.gradient_scale = at::zeros({1}, real);
  mean_scale_ = at::zeros({1}, real);
  scalars_.step = at::zeros({1}, count_.options());
  scalars_.apply = at::ones({1}, real.dtype(at::kBool));
  if (context.config.precision == "fp16") scaler_.emplace(context.config.strategy.options.section("loss_scale"), real);
}

void Update::set_own(Own own) {
  if (!own_.header.defined()) {
    own_count_ = at::full_like(count_, -1);
    figures_ = at::zeros({5}, figures_.options());
    own_scalars_ = {scalars_.learning_rate, at::zeros_like(scalars_.step), at::zeros_like(scalars_.gradient_scale),
                    at::ones_like(scalars_.apply)};
  }
  const auto any = [](const std::vector<char>& list) { return std::find(list.begin(), list.end(), 1) != list.end(); };
  own_ = std::move(own);
  owns_ = any(own_.slots) || any(own_.tables);
  shares_ = own_.shares || !owns_;
}

std::unique_ptr<Optimizer> Update::optimizer_for(const std::vector<UpdateSlot>& slots) const {
  auto optimizer = make_optimizer(optimizer_options_);
  for (const UpdateSlot& slot : slots) {
    SlotOptions options;
    options.learning_rate_factor = slot.group.learning_rate_factor;
    options.weight_decay = slot.group.weight_decay;
    optimizer->add_slot(slot.values, options);
  }
  return optimizer;
}

void Update::attach(const FlatParameters& flat) {
  at::NoGradGuard no_grad;
  std::vector<UpdateSlot> slots;
  for (int slot = 0; slot < static_cast<int>(flat.slots().size()); ++slot) {
    const FlatParameters::Slot& range = flat.slots()[static_cast<size_t>(slot)];
    slots.push_back({flat.values(slot), flat.gradients(slot), range.group, range.counted});
  }
  auto optimizer = optimizer_for(slots);
  if (flat_ != nullptr) {
    for (size_t parameter = 0; parameter < flat.parameters().size(); ++parameter) {
      const auto before = moments(parameter);
      auto after = optimizer->moments(flat.place(parameter).slot);
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
  row_optimizer_ = make_row_optimizer(optimizer_options_);
  for (const ParameterPtr& table : tables_) {
    const GroupSettings group = group_settings(optimizer_options_, table->name);
    SlotOptions options;
    options.learning_rate_factor = group.learning_rate_factor;
    options.weight_decay = group.weight_decay;
    table->table->connect(row_optimizer_.get(), options);
  }
}

at::Tensor Update::scale_of(const at::Tensor& header, double nominal) const {
  const at::Tensor weight = header.to(figures_.options()).narrow(0, 0, 1);
  // Nobody had a row of any weight: the gradients are zero, and so may be their scale.
  at::Tensor scale = at::where(weight > 0, nominal / weight, at::zeros_like(weight));
  return scaler_ ? scale.div_(scaler_->scale()) : scale;
}

void Update::begin(double nominal) {
  at::NoGradGuard no_grad;
  if (figures_.is_cpu()) return begin_on_host(nominal);
  scalars_.gradient_scale.copy_(scale_of(header_, nominal));
  if (owns_) {
    own_scalars_.gradient_scale.copy_(scale_of(own_.header, nominal));
    own_count_.copy_(at::where(own_count_ < 0, count_, own_count_));
  }
  mean_scale_.copy_(scalars_.gradient_scale);
  figures_.zero_();
}

void Update::set_rate() {
  rate_is_set_ = true;
  next_rate();
}

void Update::next_rate() {
  const double rate = schedule_.learning_rate(updates_++);
  if (scalars_.learning_rate.is_cpu())
    *scalars_.learning_rate.mutable_data_ptr<double>() = rate;
  else
    scalars_.learning_rate.fill_(rate);
}

void Update::reduced(int bucket) {
  for (int slot : flat_->buckets()[static_cast<size_t>(bucket)].slots) reduced_slot(slot);
}

void Update::reduced_slot(int slot) {
  const UpdateSlot& range = slots_[static_cast<size_t>(slot)];
  add_figures(range.gradients, range.counted, is_own(static_cast<size_t>(slot)) ? 3 : 0);
}

void Update::reduced_rows(bool finite, bool told) {
  Communicator* const group = tables_.empty() ? nullptr : tables_.front()->table->updates_with();
  norm_known_ = group == nullptr || !finite || told || clip_norm_ > 0;
  if (!norm_known_) return;
  if (group == nullptr) {
    for (size_t table = 0; table < tables_.size(); ++table)
      add_figures(tables_[table]->table->update().values, tables_[table]->counted, is_own_table(table) ? 3 : 0);
    return;
  }
  // Those of all other gradients are the same on all ranks of the group. No rank has tables of its own there.
  const at::Tensor others = figures_.clone();
  figures_.zero_();
  for (const ParameterPtr& table : tables_) add_figures(table->table->update().values, table->counted, 0);
  group->all_reduce(figures_, ReduceOp::sum, {"gradient norm of rows", {}})->wait();
  figures_.add_(others);
}

void Update::add_figures(const at::Tensor& gradients, bool counted, int64_t first) {
  at::NoGradGuard no_grad;
  if (figures_.is_cpu() && gradients.is_cpu()) {
    const HostSquareSum part = host_square_sum(gradients);
    double* figures = figures_.mutable_data_ptr<double>();
    if (counted) figures[first] += part.sum;
    figures[first + 1] += part.finite ? 0 : 1;
    return;
  }
  const at::Device here = figures_.device();
  const SquareSum part = square_sum(gradients);
  if (counted) figures_.select(0, first).add_(part.sum[0].to(here));
  figures_.select(0, first + 1).add_(part.finite[0].logical_not().to(here));
}

// Of a rank's further devices, copies.
UpdateScalars Update::scalars_on(at::Device device, const UpdateScalars& scalars) {
  if (device == scalars.apply.device()) return scalars;
  return {scalars.learning_rate.to(device), scalars.step.to(device), scalars.gradient_scale.to(device),
          scalars.apply.to(device)};
}

// As torch's clip_grad_norm_, so that a norm of zero needs no case of its own.
void Update::clip(UpdateScalars& scalars, const at::Tensor& norm) const {
  if (clip_norm_ > 0) scalars.gradient_scale.mul_((clip_norm_ / (norm + 1e-6)).clamp_max_(1));
}

void Update::update_slots() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const at::Tensor& gradients = slots_[slot].gradients;
    optimizer_->update(static_cast<int>(slot), {gradients, {}, {}},
                       scalars_on(gradients.device(), is_own(slot) ? own_scalars_ : scalars_));
  }
  for (size_t table = 0; table < tables_.size(); ++table) {
    const TableRows& rows = tables_[table]->table->update();
    row_optimizer_->update(static_cast<int>(table), rows.numbers, rows.values,
                           scalars_on(rows.values.device(), is_own_table(table) ? own_scalars_ : scalars_));
  }
}

UpdateFigures Update::finish() {
  at::NoGradGuard no_grad;
  if (figures_.is_cpu()) return finish_on_host();
  const at::Tensor& judged = shares_ ? header_ : own_.header;
  // A loss that is not finite on one rank only, of those that should have it alike, stops the update on all.
  figures_.select(0, 2).add_(at::isfinite(judged).all().logical_not().to(figures_.device()));
  for (const CommunicatorPtr& group : cut_) group->all_reduce(figures_, ReduceOp::sum, {"gradient norm", {}})->wait();
  // One loss scale for the sums of all ranks' gradients: what one rank found of its own counts for all.
  if (scaler_ && owns_ && shares_)
    own_.group->all_reduce(figures_.narrow(0, 4, 1), ReduceOp::sum, {"own gradients", {}})->wait();
  const at::Tensor loss_finite = figures_.narrow(0, 2, 1) == 0;
  const at::Tensor own_finite = owns_ ? figures_.narrow(0, 4, 1) == 0 : at::ones_like(loss_finite);
  const at::Tensor shared_finite = (figures_.narrow(0, 1, 1) == 0).logical_and(loss_finite);
  at::Tensor norm = figures_.narrow(0, 0, 1).sqrt().mul_(scalars_.gradient_scale);
  scalars_.apply.copy_(shared_finite.logical_and(own_finite));
  clip(scalars_, norm);
  if (owns_) {
    const at::Tensor own_norm = figures_.narrow(0, 3, 1).sqrt().mul_(own_scalars_.gradient_scale);
    at::logical_and_out(own_scalars_.apply, scalars_.apply, own_scalars_.gradient_scale > 0);
    clip(own_scalars_, own_norm);
    norm = at::hypot(norm, own_norm);
    at::add_out(own_scalars_.step, own_count_, 1);
  }
  if (!rate_is_set_) next_rate();
  ++made_;
  at::add_out(scalars_.step, count_, 1);
  update_slots();
  count_.add_(scalars_.apply);
  if (owns_)
    own_count_.add_(own_scalars_.apply);
  else if (own_.header.defined())
    own_count_.copy_(count_);
  updated_ = true;
  // What ranks do not sum they do not know alike.
  UpdateFigures figures{norm[0],
                        (owns_ && !shares_ ? at::ones_like(shared_finite) : shared_finite)[0].clone(),
                        scalars_.learning_rate,
                        {}};
  if (owns_) figures.own_finite = (shares_ ? own_finite : own_finite.logical_and(shared_finite))[0].clone();
  if (scaler_) {
    figures.skipped = scaler_->excuses(loss_finite)[0].logical_and(scalars_.apply[0].logical_not());
    figures.finite = figures.finite.logical_or(figures.skipped);
    if (owns_) figures.own_finite = figures.own_finite.logical_or(figures.skipped);
    scaler_->update(scalars_.apply);
  }
  return figures;
}

// On the CPU the same arithmetic, in the same order, without its tensors: these dozens of kernels on single numbers would be
// a tenth of a light step.
void Update::begin_on_host(double nominal) {
  const double scale = host_scale_of(header_, nominal);
  *scalars_.gradient_scale.mutable_data_ptr<double>() = scale;
  *mean_scale_.mutable_data_ptr<double>() = scale;
  std::fill_n(figures_.mutable_data_ptr<double>(), figures_.numel(), 0.0);
  if (!owns_) return;
  *own_scalars_.gradient_scale.mutable_data_ptr<double>() = host_scale_of(own_.header, nominal);
  int64_t& own_count = *own_count_.mutable_data_ptr<int64_t>();
  if (own_count < 0) own_count = host_count(count_);
}

double Update::host_scale_of(const at::Tensor& header, double nominal) const {
  const double weight = number(header, 0), scale = weight > 0 ? 1 / weight * nominal : 0;
  return scaler_ ? scale / number(scaler_->scale(), 0) : scale;
}

UpdateFigures Update::finish_on_host() {
  double* figures = figures_.mutable_data_ptr<double>();
  const at::Tensor& judged = shares_ ? header_ : own_.header;
  if (!std::isfinite(number(judged, 0)) || !std::isfinite(number(judged, 1))) figures[2] += 1;
  for (const CommunicatorPtr& group : cut_) group->all_reduce(figures_, ReduceOp::sum, {"gradient norm", {}})->wait();
  if (scaler_ && owns_ && shares_)
    own_.group->all_reduce(figures_.narrow(0, 4, 1), ReduceOp::sum, {"own gradients", {}})->wait();
  const bool loss_finite = figures[2] == 0, own_finite = !owns_ || figures[4] == 0;
  const bool shared_finite = figures[1] == 0 && loss_finite, apply = shared_finite && own_finite;
  *scalars_.apply.mutable_data_ptr<bool>() = apply;
  double norm = clipped_on_host(scalars_, figures[0]);
  if (owns_) {
    *own_scalars_.apply.mutable_data_ptr<bool>() = apply && number(own_scalars_.gradient_scale, 0) > 0;
    norm = std::hypot(norm, clipped_on_host(own_scalars_, figures[3]));
    *own_scalars_.step.mutable_data_ptr<int64_t>() = host_count(own_count_) + 1;
  }
  if (!rate_is_set_) next_rate();
  ++made_;
  *scalars_.step.mutable_data_ptr<int64_t>() = host_count(count_) + 1;
  update_slots();
  host_count(count_) += apply ? 1 : 0;
  if (owns_)
    host_count(own_count_) += *own_scalars_.apply.const_data_ptr<bool>() ? 1 : 0;
  else if (own_.header.defined())
    host_count(own_count_) = host_count(count_);
  updated_ = true;
  const auto flag = [&](bool value) { return host_scalar(value, scalars_.apply.options()); };
  UpdateFigures told{norm_known_ ? host_scalar(norm, figures_.options()) : at::Tensor(),
                     flag((owns_ && !shares_) || shared_finite),
                     scalars_.learning_rate,
                     {},
                     {}};
  if (owns_) told.own_finite = flag(shares_ ? own_finite : own_finite && shared_finite);
  if (scaler_) {
    told.skipped = scaler_->excuses(at::full({1}, loss_finite, scalars_.apply.options()))[0].logical_and(flag(!apply));
    told.finite = told.finite.logical_or(told.skipped);
    if (owns_) told.own_finite = told.own_finite.logical_or(told.skipped);
    scaler_->update(scalars_.apply);
  }
  return told;
}

// The norm of the mean gradient; the scale is brought down where that is above clip_norm.
double Update::clipped_on_host(UpdateScalars& scalars, double squares) const {
  double& scale = *scalars.gradient_scale.mutable_data_ptr<double>();
  const double norm = std::sqrt(squares) * scale;
  if (clip_norm_ > 0) scale *= std::min(1 / (norm + 1e-6) * clip_norm_, 1.0);
  return norm;
}

void Update::renumbered(int64_t steps) { updates_ = steps_.of(steps); }

std::vector<std::pair<std::string, at::Tensor>> Update::moments(size_t parameter) {
  auto moments = optimizer_->moments(flat_->place(parameter).slot);
  for (auto& entry : moments) entry.second = flat_->view(parameter, entry.second);
  return moments;
}

at::Tensor Update::table_gradient(size_t table) const {
  if (is_own_table(table)) return {};  // one of many
  const RowTable& rows = *tables_[table]->table;
  const at::Tensor values = mean(rows.update().values);
  return values.defined() ? rows.dense(rows.update().numbers, values) : values;
}

void Update::settle() {
  for (size_t table = 0; table < tables_.size(); ++table) row_optimizer_->settle(static_cast<int>(table));
}

at::Tensor Update::gradient(size_t parameter) const {
  if (is_own(static_cast<size_t>(flat_->place(parameter).slot))) return {};  // one of many
  return mean(flat_->parameters()[parameter]->gradient);
}

at::Tensor Update::mean(const at::Tensor& gradients) const {
  if (!updated_) return {};
  at::NoGradGuard no_grad;
  at::Tensor scale = mean_scale_;
  // LibTorch's fused kernels leave behind what they scaled.
  if (gradients.is_cuda()) scale = at::where(scale > 0, scale / scalars_.gradient_scale, scale);
  return gradients * scale.to(gradients.options());
}

std::vector<std::pair<std::string, at::Tensor>> Update::counters() const {
  std::vector<std::pair<std::string, at::Tensor>> all{{"updates", count_}};
  if (scaler_)
    for (const auto& entry : scaler_->state()) all.push_back(entry);
  return all;
}

void Update::restored() {
  updates_ = count_.cpu()[0].item<int64_t>();
  if (scaler_) updates_ += scaler_->skipped().cpu()[0].item<int64_t>();
  made_ = updates_;
  for (size_t table = 0; table < tables_.size(); ++table) row_optimizer_->restored(static_cast<int>(table));
}

}  // namespace convoy
