// StackedUpdate: the end of a stack's step, one member as little concerned with another as if each trained by itself:
// gradients → (norm, finite) → clipping → optimizer, all members' in one pass over a group's buffer.
//
// All scalars are tensors on the device with one element for each row; nothing is read to the host there. A member whose
// loss or gradient is not finite stays as it was. parts/update.h does the same for one model.
// Call order: attach; then for each update begin → add_loss … → finish. Threads: the rank's own.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/model_interface.h"
#include "core/optim/optimizer.h"
#include "strategies/parts/members/stacked_storage.h"

namespace convoy {

struct StackedFigures {
  at::Tensor norm;           // float64 (float32 on CUDA) [rows]: of the mean gradient, before clipping
  at::Tensor finite;         // bool [rows]
  at::Tensor learning_rate;  // [rows]; overwritten by the next update
};

class StackedUpdate {
 public:
  StackedUpdate(const Context& context, StackedStorage& storage, const std::vector<MemberSettings>& rows);

  // The first `active` rows train from now on. `order`: as StackedStorage::reorder, done before; moments and counts move
  // along.
  void attach(int64_t active, const std::vector<int64_t>& order);

  void begin();
  void add_loss(const Loss& loss);  // sums and weights [active]
  // The rates of the update to come, for a caller that does so before each of them from now on: `finish` then leaves to the
  // host nothing that changes, and may be recorded (core/device_graph.h).
  void set_rates();
  // Gradients are those of loss.sum ÷ nominal.
  StackedFigures finish(double nominal);

  // Moments of one group, each [rows, elements] of the rows asked for: the first `active`, or those behind them. Empty
  // where there are no such rows.
  std::vector<std::pair<std::string, at::Tensor>> moments(size_t group, bool training);
  const at::Tensor& counts() const { return counts_; }  // updates applied, int64 [all rows]
  // What makes a row's gradients those of its mean loss; undefined until there was an update.
  at::Tensor mean_scale() const { return updated_ ? mean_scale_ : at::Tensor(); }
  void restored();                                      // counts() were written to from outside
  void renumbered(int64_t steps) { updates_ = steps; }  // Strategy's; each step makes an update

 private:
  void make_scalars(int64_t active);
  void next_rates();
  void move_moments(size_t group, int64_t active, const at::Tensor& index, Optimizer& optimizer);
  at::Tensor square_sums(at::Tensor& finite) const;

  Component optimizer_;
  StackedStorage& storage_;
  double clip_norm_ = 0;  // 0: no clipping
  at::TensorOptions real_;
  std::vector<Schedule> schedules_;  // by row
  std::unique_ptr<Optimizer> applied_;
  int64_t active_ = 0;
  int64_t updates_ = 0;  // for the schedules: the same for all that train
  at::Tensor counts_;
  at::Tensor weight_, sum_;  // of the losses under way, [active]
  at::Tensor mean_scale_;
  UpdateScalars scalars_;
  std::vector<at::Tensor> rate_factors_;  // by group, [active]
  bool rates_are_set_ = false;
  bool updated_ = false;
};

}  // namespace convoy
