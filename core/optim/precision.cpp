#include "core/optim/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "core/base/error.h"

namespace convoy {

at::ScalarType parameter_dtype(const std::string& precision) {
  if (precision == "fp64") return at::kDouble;
  if (precision == "fp32" || precision == "bf16" || precision == "fp16") return at::kFloat;
  throw Error(Failure::config, "precision: ", precision, " is not one of fp64, fp32, bf16, fp16");
}

std::optional<at::ScalarType> autocast_dtype(const std::string& precision) {
  if (precision == "bf16") return at::kBFloat16;
  if (precision == "fp16") return at::kHalf;
  return std::nullopt;
}

void clear_autocast_cache() { at::autocast::clear_cache(); }

AutocastScope::AutocastScope(at::Device device, std::optional<at::ScalarType> dtype)
    : device_(device.type()), active_(dtype.has_value()) {
  if (!active_) return;
  before_ = at::autocast::is_autocast_enabled(device_);
  at::autocast::set_autocast_dtype(device_, *dtype);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  // The cache has casts of weights that the update will change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, before_);
}

namespace {

// A smaller factor would shrink gradients below their unscaled values.
constexpr double smallest = 1;
// A larger factor would be of no use: gradients in fp16 overflow far below it.
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

NamedTensors LossScaler::state() const {
  return {{"loss_scale", scale_}, {"loss_scale_streak", streak_}, {"skipped_updates", skipped_}};
}

}  // namespace convoy
