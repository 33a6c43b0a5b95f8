// `precision` of a rank: the dtype of its parameters, and the half-precision dtype of its products.
#pragma once
#include <ATen/core/Tensor.h>
#include <optional>
#include <string>

#include "core/base/options.h"
#include "core/optim/optimizer.h"

namespace convoy {

// fp64 → float64. fp32, bf16, fp16 → float32, where bf16 and fp16 compute products in half precision by autocast.
at::ScalarType parameter_dtype(const std::string& precision);
std::optional<at::ScalarType> autocast_dtype(const std::string& precision);

// Clears autocast's cache of converted tensors, for all threads.
void clear_autocast_cache();

// Enables autocast in this thread during its lifetime; without a dtype it changes nothing.
class AutocastScope {
 public:
  AutocastScope(at::Device device, std::optional<at::ScalarType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool active_;
  bool before_ = false;
};

// LossScaler: a factor on the loss that keeps fp16 gradients above the smallest fp16 numbers (Micikevicius et al.,
// arXiv:1710.03740). It grows after a number of updates in a row, and shrinks when gradients overflow.
//
// An overflow skips the update, which is not a fault. It is a fault if no smaller factor helps: the loss itself is not
// finite, or the factor has its smallest value. All values are device tensors with a leading member dimension; nothing
// is read to the host. Every rank of the job updates its scaler equally, because all ranks exchange the finite flags.
class LossScaler {
 public:
  // `options`: the section `loss_scale` of memory_options() (strategies/plans/options/data_axis.h). `real`: dtype and
  // device of scalars.
  LossScaler(const Options& options, const at::TensorOptions& real);

  const at::Tensor& scale() const { return scale_; }  // [1]; changed in place by `update`
  // Returns bool [1]: true if an update with non-finite gradients may be skipped. `loss_finite`: bool [1].
  at::Tensor excuses(const at::Tensor& loss_finite) const;
  // Called after each update. `applied`: bool [1].
  void update(const at::Tensor& applied);

  const at::Tensor& skipped() const { return skipped_; }  // number of updates so far, int64 [1]
  // Returns the state by name, for checkpoints; writable.
  NamedTensors state() const;

 private:
  double growth_, backoff_;
  int64_t interval_;
  at::Tensor scale_;
  at::Tensor streak_;  // updates since the scale changed, int64 [1]
  at::Tensor skipped_;
};

}  // namespace convoy
