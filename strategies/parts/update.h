// The end of every strategy's step: gradients → (norm, finite) → loss scale, clipping → optimizer.
//
// All scalars are device tensors with a leading member dimension; nothing is read to the host. An update of which the loss
// or any gradient is not finite leaves parameters, moments and the count as they were. In fp16 that is no fault where the
// loss scaler can help (loss_scaler.h): it is skipped.
// Call order: attach; then for each update begin → reduced(bucket or slot) in order → finish. Threads: the rank's own.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/optim/optimizer.h"
#include "core/optim/row_optimizer.h"
#include "core/optim/update_count.h"
#include "strategies/parts/flat_parameters.h"
#include "strategies/parts/loss_scaler.h"

namespace convoy {

// A contiguous range of values with their gradients, whoever stores them.
struct UpdateSlot {
  at::Tensor values, gradients;  // [elements]; their storage stays
  GroupSettings group;
  bool counted = true;  // in norms: no other rank of the groups that figures are summed over counts the same
};

struct UpdateFigures {
  at::Tensor norm;             // float64 (float32 on CUDA), []: of the mean gradient, before clipping; or undefined
  at::Tensor finite;           // bool, []: false is a fault
  at::Tensor learning_rate;    // [1]; overwritten by the next update
  at::Tensor skipped;          // bool, []: by the loss scaler; undefined where there is none
  at::Tensor own_finite = {};  // bool, []: the same of this rank's own gradients alone; undefined where there are none
};

class Update {
 public:
  // `every`: micro-steps an update. `cut`: groups over which ranks hold different pieces of the gradients, whose figures
  // are summed; none where every rank holds them whole.
  Update(const Context& context, int64_t every, std::vector<CommunicatorPtr> cut = {});

  // Takes the slots of `flat`, which must outlive the next attach. Moments of the layout before move along.
  void attach(const FlatParameters& flat);
  // Takes slots of the caller's making, with moments of zero. `header`: [2], weight and sum of the loss.
  void attach(std::vector<UpdateSlot> slots, at::Tensor header);

  // Takes row tables too, with moments of zero: once, before the first forward. Their gradients are RowTable::update().
  void attach_tables(std::vector<ParameterPtr> tables);
  // What of the next updates is of this rank's rows alone.
  struct Own {
    std::vector<char> slots, tables;  // by index; those missing are not
    at::Tensor header;                // [2], as attach's: of the rank's rows
    // Other ranks' slots, or some of these, are of gradients that ranks sum, so that all must decide alike in fp16: `group`
    // are those who do.
    bool shares = true;
    CommunicatorPtr group;
  };
  // From the next `begin` on: own gradients' scale is that of the weight in the own header, they are clipped by a norm of
  // their own, and without rows nothing of what they belong to changes.
  void set_own(Own own);

  // What backward multiplies the loss with: for ForwardState::loss_scale of all parts. Undefined: nothing.
  at::Tensor loss_scale() const { return scaler_ ? scaler_->scale() : at::Tensor(); }

  // Gradients are those of loss.sum × loss scale ÷ nominal, summed over ranks and micro-steps; the header holds the loss'
  // weight and sum, alike summed.
  void begin(double nominal);
  // The rate of the update to come, for a caller that does so before each of them from now on: `finish` then leaves to the
  // host nothing that changes, and may be recorded (core/device_graph.h).
  void set_rate();
  void reduced(int bucket);     // of FlatParameters
  void reduced_slot(int slot);  // of either kind
  // Of all tables. Where ranks divide an update, they exchange its figures, unless the sums of all are `finite` for certain
  // (on all ranks alike), and nobody needs the norm: neither clipping, nor who is `told` of it.
  void reduced_rows(bool finite = false, bool told = true);
  UpdateFigures finish();

  // Moments of a parameter, in its shape.
  std::vector<std::pair<std::string, at::Tensor>> moments(size_t parameter);
  // Gradient of a parameter in the update before, in its shape: of the mean loss over all rows, before clipping. A copy;
  // undefined until there was an update. Valid until the next backward.
  at::Tensor gradient(size_t parameter) const;
  int slots() const { return static_cast<int>(slots_.size()); }
  // The same of a slot.
  std::vector<std::pair<std::string, at::Tensor>> slot_moments(int slot) { return optimizer_->moments(slot); }
  at::Tensor slot_gradient(int slot) const { return mean(slots_[static_cast<size_t>(slot)].gradients); }

  // The same of a row table. Moments are behind until `settle`, as its values are.
  const std::vector<ParameterPtr>& tables() const { return tables_; }
  std::vector<std::pair<std::string, at::Tensor>> table_moments(size_t table) {
    return row_optimizer_->moments(static_cast<int>(table));
  }
  at::Tensor table_gradient(size_t table) const;
  void settle();
  bool table_behind(size_t table) const { return row_optimizer_->behind(static_cast<int>(table)); }
  void settle_rows(size_t table, const at::Tensor& rows) { row_optimizer_->settle_rows(static_cast<int>(table), rows); }

  const at::Tensor& count() const { return count_; }          // updates applied, int64 [1]
  int64_t made() const { return made_; }                      // updates so far, those that were skipped too
  const at::Tensor& own_count() const { return own_count_; }  // the same of own slots; −1: as many as count()
  // What is counted or kept beside parameters and moments, by name: `updates`, and the loss scaler's state.
  std::vector<std::pair<std::string, at::Tensor>> counters() const;
  void restored();                 // counters() were written to from outside
  void renumbered(int64_t steps);  // Strategy's

 private:
  // `first`: of figures_, where its sum of squares goes.
  void add_figures(const at::Tensor& gradients, bool counted, int64_t first);
  std::unique_ptr<Optimizer> optimizer_for(const std::vector<UpdateSlot>& slots) const;
  // Of the mean loss over all rows, before clipping; undefined until there was an update.
  at::Tensor mean(const at::Tensor& gradients) const;
  static UpdateScalars scalars_on(at::Device device, const UpdateScalars& scalars);
  void update_slots();
  void next_rate();
  // `begin` and `finish` where the scalars lie on the CPU.
  void begin_on_host(double nominal);
  UpdateFigures finish_on_host();
  bool is_own(size_t slot) const { return slot < own_.slots.size() && own_.slots[slot] != 0; }
  bool is_own_table(size_t table) const { return table < own_.tables.size() && own_.tables[table] != 0; }
  at::Tensor scale_of(const at::Tensor& header, double nominal) const;
  double host_scale_of(const at::Tensor& header, double nominal) const;
  double clipped_on_host(UpdateScalars& scalars, double squares) const;
  void clip(UpdateScalars& scalars, const at::Tensor& norm) const;

  Component optimizer_options_;
  std::unique_ptr<Optimizer> optimizer_;
  UpdateCount steps_;
  Schedule schedule_;
  std::vector<CommunicatorPtr> cut_;
  double clip_norm_ = 0;                  // 0: no clipping
  const FlatParameters* flat_ = nullptr;  // null where slots are the caller's
  std::vector<UpdateSlot> slots_;
  std::unique_ptr<RowOptimizer> row_optimizer_;  // null where there are no tables
  std::vector<ParameterPtr> tables_;
  at::Tensor header_;
  std::optional<LossScaler> scaler_;
  int64_t updates_ = 0;  // for the schedule: those that have a rate, applied and skipped
  int64_t made_ = 0;     // those that the host has finished
  at::Tensor count_;
  at::Tensor
      figures_;  // [3]: sum of squares; number of slots and of losses that are not finite; [5] with own slots: the
                 // first two of these
  UpdateScalars scalars_;
  at::Tensor mean_scale_;  // what makes the gradients those of the mean loss; gradient_scale clips too
  bool norm_known_ = true;
  bool rate_is_set_ = false;
  bool updated_ = false;  // the slots hold the gradients of an update
  Own own_;               // its header is undefined until set_own
  bool owns_ = false;     // something is own
  bool shares_ = true;    // something is not, here or on others
  at::Tensor own_count_;
  UpdateScalars own_scalars_;
};

}  // namespace convoy
