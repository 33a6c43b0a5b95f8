// StackedUpdate: end of a stack's step: gradients → (norm, finite) → clipping → optimizer. Members are independent, and
// one pass over a group's flat tensor updates all of them.
//
// All scalars are tensors on the device with one element per row; the host reads none. A member with a non-finite loss
// or gradient stays unchanged. strategies/common/step/update.h does the same for one model.
// Call order: attach; then for each update set_loss → finish. Threads: the rank's thread.
#pragma once
#include <ATen/core/Tensor.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "strategies/common/step/update.h"
#include "strategies/ensemble/stacked_storage.h"

namespace convoy {

// EnsembleVote: the common prediction of an ensemble, measured by the model's metrics: the mean of its members and, for
// classes, their majority.
//
//   classes (logits of cross-entropy): mean of probabilities; each member votes for its likeliest class, and the mean
//                                      breaks ties
//   ratings and scores (bce, bpr):     mean of their sigmoids
//   numbers (mse):                     mean
//
// Each evaluation batch sends one all-reduce of the sums over members, which may be on several ranks.
class EnsembleVote {
 public:
  // `members`: number over all ranks; `loss_name`: configured or the model's default; `plain`: layers without members.
  EnsembleVote(ModelPtr model, LossPtr loss, const std::string& loss_name, int64_t members,
               std::shared_ptr<Layers> plain, CommunicatorPtr world);

  // `outputs`: outputs of this rank's members [local members, …]; `batch`: the input of all of them. Returns
  // "mean_loss", "mean_X" for each of the model's metrics X and, for classes, "vote_X"; zeros except on the first rank.
  // Returns nothing for a model with several outputs.
  std::vector<Metric> operator()(const TensorList& outputs, const Batch& batch) const;

 private:
  std::vector<Metric> measured(const at::Tensor& output, const Batch& batch, const std::string& prefix,
                               bool with_loss) const;

  ModelPtr model_;
  LossPtr loss_;
  bool scores_;  // a sigmoid converts outputs to probabilities
  int64_t members_;
  std::shared_ptr<Layers> plain_;
  CommunicatorPtr world_;
};

class StackedUpdate {
 public:
  StackedUpdate(const Context& context, StackedStorage& storage, const std::vector<MemberSettings>& rows);

  // Trains the first `active` rows from now on. `order`: that of StackedStorage::reorder, which must be called before.
  // Moments and counts move along.
  void attach(int64_t active, const std::vector<int64_t>& order);

  void set_loss(const Loss& loss);  // sums and weights [active]
  // Sets the rates of the next update. Once it is called, it must be called before each update. Then `finish` has no
  // changing work on the host, and may be recorded (core/context.h).
  void set_rates();
  // Gradients must be those of loss.sum ÷ nominal. Statistics have one value per row.
  UpdateStatistics finish(double nominal);

  // Returns moments of one group, each [rows, elements], for the training rows or the finished ones. Empty without such
  // rows.
  NamedTensors moments(size_t group, bool training);
  const at::Tensor& counts() const { return counts_; }  // updates applied, int64 [all rows]
  // Returns the factor from a row's gradients to those of its mean loss; undefined before the first update.
  at::Tensor mean_scale() const { return updated_ ? mean_scale_ : at::Tensor(); }
  void restored();                                      // counts() were written from outside
  void renumbered(int64_t steps) { updates_ = steps; }  // as Strategy::renumbered; each step makes an update

 private:
  void make_scalars(int64_t active);
  void next_learning_rates();
  void move_moments(size_t group, int64_t active, const at::Tensor& index, Optimizer& optimizer);
  at::Tensor square_sums(at::Tensor& finite) const;

  Component optimizer_;
  StackedStorage& storage_;
  double clip_norm_ = 0;  // 0: no clipping
  at::TensorOptions real_;
  std::vector<Schedule> schedules_;  // by row
  std::unique_ptr<Optimizer> applied_;
  int64_t active_ = 0;
  int64_t updates_ = 0;  // number for the schedules: equal for all training members
  at::Tensor counts_;
  at::Tensor weight_, sum_;  // weight and sum of the current losses, [active]
  at::Tensor mean_scale_;
  UpdateScalars scalars_;
  std::vector<at::Tensor> rate_factors_;  // by group, [active]
  bool rates_are_set_ = false;
  bool updated_ = false;
};

}  // namespace convoy
