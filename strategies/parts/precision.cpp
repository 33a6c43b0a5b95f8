#include "strategies/parts/precision.h"

#include <ATen/autocast_mode.h>

#include "core/error.h"

namespace convoy {

at::ScalarType parameter_dtype(const std::string& precision) {
  if (precision == "fp64") return at::kDouble;
  if (precision == "fp32" || precision == "bf16" || precision == "fp16") return at::kFloat;
  throw Error(Failure::config, str("precision: ", precision, " is not one of fp64, fp32, bf16, fp16"));
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
  // The cache holds casts of weights that the update is about to change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, before_);
}

}  // namespace convoy
