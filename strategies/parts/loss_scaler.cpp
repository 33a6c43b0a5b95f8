#include "strategies/parts/loss_scaler.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace convoy {
namespace {

// Gradients of a loss that is multiplied by no more than this are as they are.
constexpr double smallest = 1;
// Far beyond what fp16 gradients bear, and far from where the factor itself would overflow.
constexpr double largest = 4294967296.0;

}  // namespace

LossScaler::LossScaler(const Options& options, const at::TensorOptions& real)
    : growth_(options.real("growth")),
      backoff_(options.real("backoff")),
      interval_(options.integer("growth_interval")),
      scale_(at::full({1}, options.real("initial"), real)),
      streak_(at::zeros({1}, real.dtype(at::kLong))),
      skipped_(at::zeros({1}, real.dtype(at::kLong))) {}

at::Tensor LossScaler::excuses(const at::Tensor& loss_finite) const {
  at::NoGradGuard no_grad;
  return loss_finite.logical_and(scale_ > smallest);
}

void LossScaler::update(const at::Tensor& applied) {
  at::NoGradGuard no_grad;
  const at::Tensor streak = at::where(applied, streak_ + 1, at::zeros_like(streak_));
  const at::Tensor grows = streak >= interval_;
  const at::Tensor after_success = at::where(grows, (scale_ * growth_).clamp_max(largest), scale_);
  scale_.copy_(at::where(applied, after_success, (scale_ * backoff_).clamp_min(smallest)));
  streak_.copy_(at::where(grows, at::zeros_like(streak), streak));
  skipped_.add_(applied.logical_not());
}

std::vector<std::pair<std::string, at::Tensor>> LossScaler::state() const {
  return {{"loss_scale", scale_}, {"loss_scale_streak", streak_}, {"skipped_updates", skipped_}};
}

}  // namespace convoy
