// What layers that hold whole parameters have in common, of one model (plain_layers.h) or of several (stacked_layers.h): what
// is refused, and the handle of a parameter that is always there.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "core/layers.h"

namespace convoy {

// `name`: the layer's canonical name. Error(config).
void check_dropout(const std::string& name, double p);
void check_groups(const std::string& name, int64_t in, int64_t out, int64_t groups);
[[noreturn]] void fail_tie(const std::string& name, const std::string& to);
void check_tie(const std::string& name, const std::string& to, at::IntArrayRef wanted, at::IntArrayRef there);

// One value per channel has no variance, none has no mean: batch norm of a share of one row or none takes the running
// figures, where it would make them NaN.
inline bool has_variance(int64_t elements, int64_t channels) { return channels > 0 && elements / channels > 1; }

struct WholeParameter : ParameterHandle {
  explicit WholeParameter(at::Tensor value) : value_(std::move(value)) {}
  const at::Tensor& get() override { return value_; }

 private:
  at::Tensor value_;
};

}  // namespace convoy
