// LossScaler: a factor on the loss that keeps fp16 gradients above what fp16 can tell from zero (Micikevicius et al.,
// arXiv:1710.03740), found while training: it grows after so many updates in a row, and shrinks when gradients overflow.
//
// An overflow is no fault: that update is skipped. It is one where no smaller factor helps, since the loss itself is not
// finite, or the factor is at its smallest. All figures are device tensors with a leading member dimension; nothing is read
// to the host. Every rank of the job makes the same updates of its scaler, since all agree on what is finite.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "core/options.h"

namespace convoy {

class LossScaler {
 public:
  // `options`: a section of loss_scale_option() (parts/replicas/replicated_entry.h). `real`: dtype and device of scalars.
  LossScaler(const Options& options, const at::TensorOptions& real);

  const at::Tensor& scale() const { return scale_; }  // [1]; changed in place by `update`
  // bool [1]: an update of gradients that are not finite may be skipped. `loss_finite`: bool [1].
  at::Tensor excuses(const at::Tensor& loss_finite) const;
  // Behind each update; `applied`: bool [1].
  void update(const at::Tensor& applied);

  const at::Tensor& skipped() const { return skipped_; }  // updates so far, int64 [1]
  // By name, for checkpoints; writable.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  double growth_, backoff_;
  int64_t interval_;
  at::Tensor scale_;
  at::Tensor streak_;  // updates since the scale changed, int64 [1]
  at::Tensor skipped_;
};

}  // namespace convoy
