#include "strategies/ensemble/stacked_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <numeric>

#include "core/losses/losses.h"
#include "core/metrics/model_metrics.h"
#include "core/model_checks.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/optim/loops.h"
#include "strategies/common/model/model_part.h"

namespace convoy {
namespace {

// Returns true if each row or position has a class as its target.
bool over_classes(const Examples& examples) {
  return examples.target.defined() && at::isIntegralType(examples.target.scalar_type(), true) &&
         examples.prediction.dim() == examples.target.dim() + 1 &&
         examples.prediction.sizes().slice(0, size_t(examples.target.dim())) == examples.target.sizes();
}

}  // namespace

EnsembleVote::EnsembleVote(ModelPtr model, LossPtr loss, const std::string& loss_name, int64_t members,
                           std::shared_ptr<Layers> plain, CommunicatorPtr world)
    : model_(std::move(model)),
      loss_(std::move(loss)),
      scores_(loss_name == "bce" || loss_name == "bpr"),
      members_(members),
      plain_(std::move(plain)),
      world_(std::move(world)) {}

std::vector<Metric> EnsembleVote::measured(const at::Tensor& output, const Batch& batch, const std::string& prefix,
                                           bool with_loss) const {
  const TensorList outputs{output};
  std::vector<Metric> metrics;
  if (with_loss)
    metrics.push_back(loss_metric(
        checked_loss((*loss_)(examples_of_new_items(model_->examples(outputs, batch), batch), *plain_), *plain_)));
  for (Metric& metric : checked_metrics(model_->metrics(scores_of_new_items(outputs, batch), batch, *plain_), *plain_))
    metrics.push_back(std::move(metric));
  for (Metric& metric : metrics) {
    metric.name = prefix + metric.name;
    // All ranks have the same sums; only rank 0 reports them.
    if (world_->rank() == 0) continue;
    metric.sum = at::zeros_like(metric.sum);
    metric.weight = at::zeros_like(metric.weight);
  }
  return metrics;
}

std::vector<Metric> EnsembleVote::operator()(const TensorList& outputs, const Batch& batch) const {
  if (outputs.size() != 1) return {};
  at::NoGradGuard no_grad;
  const at::Tensor each = at_least_float(outputs.front());
  const bool classes = over_classes(model_->examples({each.select(0, 0)}, batch));
  const auto over_all = [&](at::Tensor sum) {
    world_->all_reduce(sum, ReduceOp::sum, {"votes", {}})->wait();
    return sum;
  };
  if (!classes) {
    const at::Tensor mean = over_all((scores_ ? each.sigmoid() : each).sum(0)) / double(members_);
    return measured(scores_ ? mean.logit(1e-7) : mean, batch, "mean_", true);
  }
  const at::Tensor votes = at::zeros_like(each).scatter_(-1, each.argmax(-1, true), 1).sum(0);
  const at::Tensor sums = over_all(at::stack({each.softmax(-1).sum(0), votes}));
  const at::Tensor mean = sums[0] / double(members_);
  std::vector<Metric> metrics = measured(mean.clamp_min(1e-30).log(), batch, "mean_", true);
  for (Metric& metric : measured(sums[1] + mean, batch, "vote_", false)) metrics.push_back(std::move(metric));
  return metrics;
}

StackedUpdate::StackedUpdate(const Context& context, StackedStorage& storage, const std::vector<MemberSettings>& rows)
    : optimizer_(context.config.optimizer), storage_(storage) {
  clip_norm_ = optimizer_options(optimizer_).clip_norm;
  const at::Device device = context.devices.front();
  real_ = at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device);
  for (const MemberSettings& member : rows)
    schedules_.emplace_back(optimizer_of(optimizer_, member), context.total_steps,
                            std::max<int64_t>(context.steps_per_epoch, 1));
  counts_ = at::zeros({storage.rows()}, real_.dtype(at::kLong));
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  attach(storage.rows(), order);
}

void StackedUpdate::attach(int64_t active, const std::vector<int64_t>& order) {
  at::NoGradGuard no_grad;
  auto optimizer = make_optimizer(optimizer_);
  const at::Tensor index = at::tensor(order, at::kLong).to(real_.device());
  std::vector<StackedStorage::Group>& groups = storage_.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const StackedStorage::Group& group = groups[g];
    SlotOptions options;
    options.members = std::max<int64_t>(active, 1);
    // A rank with only finished members keeps a slot that is never updated.
    optimizer->add_slot(group.values.narrow(0, 0, options.members), options);
    optimizer->set_weight_decays(int(g), {group.weight_decays.begin(), group.weight_decays.begin() + options.members});
    if (applied_) move_moments(g, active, index, *optimizer);
  }
  applied_ = std::move(optimizer);
  counts_.copy_(counts_.index_select(0, index));
  std::vector<Schedule> schedules;
  for (int64_t row : order) schedules.push_back(schedules_[size_t(row)]);
  schedules_ = std::move(schedules);
  make_scalars(active);
}

// Moments of training rows are in the optimizer, those of finished rows in the storage; `index` gives the old rows.
void StackedUpdate::move_moments(size_t g, int64_t active, const at::Tensor& index, Optimizer& optimizer) {
  StackedStorage::Group& group = storage_.groups()[g];
  const auto before = moments(g, true), kept = moments(g, false);
  auto fresh = optimizer.moments(int(g));
  std::vector<at::Tensor> rest;
  for (size_t i = 0; i < fresh.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const auto& list : {before, kept})
      if (!list.empty()) parts.push_back(list[i].second);
    const at::Tensor all = at::cat(parts).index_select(0, index);
    if (active > 0) fresh[i].second.view({-1, group.elements}).copy_(all.narrow(0, 0, active));
    rest.push_back(all.narrow(0, active, all.size(0) - active).clone());
  }
  group.kept = std::move(rest);
}

void StackedUpdate::make_scalars(int64_t active) {
  active_ = active;
  updated_ = false;
  weight_ = at::zeros({active}, real_);
  sum_ = at::zeros({active}, real_);
  mean_scale_ = at::zeros({active}, real_);
  scalars_.learning_rate = at::zeros({active}, real_);
  scalars_.gradient_scale = at::zeros({active}, real_);
  scalars_.step = at::zeros({active}, counts_.options());
  scalars_.apply = at::ones({active}, real_.dtype(at::kBool));
  rate_factors_.clear();
  for (const StackedStorage::Group& group : storage_.groups()) {
    rate_factors_.push_back(at::tensor(group.rate_factors, at::kDouble).narrow(0, 0, active).to(real_));
  }
}

void StackedUpdate::set_loss(const Loss& loss) {
  at::NoGradGuard no_grad;
  weight_.copy_(loss.weight.reshape({-1}));
  sum_.copy_(loss.sum.detach().reshape({-1}));
}

at::Tensor StackedUpdate::square_sums(at::Tensor& finite) const {
  at::Tensor sums;
  for (const StackedStorage::Group& group : storage_.groups()) {
    const SquareSum part = square_sum(group.gradients.narrow(0, 0, active_), active_);
    sums = sums.defined() ? sums + part.sum : part.sum;
    finite = finite.logical_and(part.finite);
  }
  return sums.to(real_);
}

void StackedUpdate::next_learning_rates() {
  std::vector<double> rates;
  for (int64_t row = 0; row < active_; ++row) rates.push_back(schedules_[size_t(row)].learning_rate(updates_));
  ++updates_;
  scalars_.learning_rate.copy_(at::tensor(rates, at::kDouble));
}

void StackedUpdate::set_rates() {
  rates_are_set_ = true;
  next_learning_rates();
}

UpdateStatistics StackedUpdate::finish(double nominal) {
  at::NoGradGuard no_grad;
  // A member without weighted rows has zero gradients, so a zero scale is right.
  mean_scale_.copy_(at::where(weight_ > 0, nominal / weight_, at::zeros_like(weight_)));
  scalars_.gradient_scale.copy_(mean_scale_);
  // 0 for each finite number, else NaN: three operators instead of nine.
  at::Tensor finite = (sum_ - sum_).eq(weight_ - weight_);
  const at::Tensor norm = square_sums(finite).sqrt_().mul_(scalars_.gradient_scale);
  scalars_.apply.copy_(finite);
  // As torch's clip_grad_norm_: the epsilon covers a norm of zero.
  if (clip_norm_ > 0) scalars_.gradient_scale.mul_((clip_norm_ / (norm + 1e-6)).clamp_max_(1));
  if (!rates_are_set_) next_learning_rates();
  at::Tensor counts = counts_.narrow(0, 0, active_);
  at::add_out(scalars_.step, counts, 1);
  for (size_t g = 0; g < storage_.groups().size(); ++g) {
    UpdateScalars of_group = scalars_;
    of_group.learning_rate = scalars_.learning_rate * rate_factors_[g];
    applied_->update(int(g), {storage_.groups()[g].gradients.narrow(0, 0, active_), {}, {}}, of_group);
  }
  counts.add_(scalars_.apply);
  updated_ = true;
  return {norm, finite, scalars_.learning_rate, {}};
}

NamedTensors StackedUpdate::moments(size_t group, bool training) {
  const StackedStorage::Group& stored = storage_.groups()[group];
  auto all = applied_->moments(int(group));
  if (training && active_ == 0) return {};
  if (!training && stored.kept.empty()) return {};
  for (size_t i = 0; i < all.size(); ++i)
    all[i].second = training ? all[i].second.view({-1, stored.elements}) : stored.kept[i];
  return all;
}

void StackedUpdate::restored() { updates_ = active_ > 0 ? counts_.narrow(0, 0, active_).max().item<int64_t>() : 0; }

}  // namespace convoy
