// Update: the end of every strategy's step. Gradients → (norm, finite) → loss scale, clipping → optimizer.
//
// Scalars are tensors of the device with a leading member dimension, and nothing is read from it; on the CPU they are
// numbers. If the loss or a gradient is not finite, parameters, moments and the count stay unchanged. In fp16 the
// update is skipped without an error if the loss scaler can help (core/optim/precision.h).
// Call order: attach; then for each update begin → reduced(bucket or slot) in order → finish. Threads: the rank's
// thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/optim/optimizer.h"
#include "core/optim/precision.h"
#include "core/optim/rows/row_optimizer.h"
#include "strategies/common/memory/flat_parameters.h"

namespace convoy {

// Contiguous range of values with their gradients.
struct UpdateSlot {
  at::Tensor values, gradients;  // [elements]; their storage stays
  GroupSettings group;
  bool counted = true;  // counts in norms: no other rank of the groups that sum norms counts the same elements
  std::vector<ParameterPiece> pieces = {};  // parameters of the slot
};

struct UpdateStatistics {
  at::Tensor norm;           // float64 (float32 on CUDA), []: norm of the mean gradient before clipping; or undefined
  at::Tensor finite;         // bool, []: false is an error
  at::Tensor learning_rate;  // [1]; overwritten by the next update
  at::Tensor skipped;        // bool, []: the loss scaler skipped the update; undefined without a scaler
  at::Tensor local_finite = {};  // bool, []: `finite` for this rank's local gradients; undefined without any
};

class Update {
 public:
  // `every`: steps per update. `cut`: groups of ranks with different shards of the gradients, over which norms and
  // finite flags are summed. Empty if every rank has all gradients. `factory` makes the optimizer of dense parameters.
  Update(const Context& context, int64_t every, std::vector<CommunicatorPtr> cut = {}, OptimizerFactory factory = {});

  // Uses the slots of `flat`, which must outlive the next attach. Keeps the moments of the previous layout.
  void attach(const FlatParameters& flat);
  // Uses slots of the caller, with moments of zero. `header`: [2], weight and sum of the loss.
  void attach(std::vector<UpdateSlot> slots, at::Tensor header);

  // Adds sparse embeddings with moments of zero. Call it once, before the first forward. Gradients:
  // SparseTable::update().
  void attach_tables(std::vector<ParameterPtr> tables);
  // Slots and tables that are updated from this rank's rows only.
  struct LocalOnly {
    std::vector<char> slots, tables;  // by index; missing entries are not local
    at::Tensor header;                // [2], as in attach, for the rank's rows
    // True if other slots, on this or other ranks, sum gradients over ranks. In fp16 all ranks of `group` must then
    // decide equally.
    bool has_summed = true;
    CommunicatorPtr group;
  };
  // Takes effect at the next `begin`. Local gradients are scaled by the weight in the local header and clipped by a
  // separate norm. If the rank has no rows, local slots do not change.
  void set_local_only(LocalOnly local_only);

  // Factor on the loss in backward, for ForwardState::loss_scale of all parts. Undefined: 1.
  at::Tensor loss_scale() const { return scaler_ ? scaler_->scale() : at::Tensor(); }

  // Begins an update. Gradients are those of loss.sum × loss scale ÷ nominal, summed over ranks and accumulated steps.
  // The header has the weight and the sum of the loss, summed in the same way.
  void begin(double nominal);
  // Sets the learning rate of the next update. Once it is called, it must be called before each update. Then `finish`
  // depends on no changing value of the host and may be recorded (core/context.h).
  void set_rate();
  // Replaces the configured rate, from the next update on; nothing: it holds again.
  void set_base_rate(std::optional<double> rate) { base_rate_ = rate; }
  std::optional<double> base_rate() const { return base_rate_; }
  double rate() const;          // learning rate of the next update
  void reduced(int bucket);     // the bucket's sums are complete; only after attach with flat parameters
  void reduced_slot(int slot);  // the same for one slot; after either attach
  // Reduces all sparse embeddings. Ranks that share an update exchange norms and finite flags. They skip this if all
  // sums are surely `finite` (equal on all ranks) and the norm is unused: no clipping and no logged step.
  void reduced_rows(bool finite = false, bool log_step = true);
  UpdateStatistics finish();

  // Returns the moments of a parameter, in its shape.
  NamedTensors moments(size_t parameter);
  // Returns a copy of a parameter's gradient in the last update, in its shape: of the mean loss over all rows, before
  // clipping. Undefined before the first update. Valid until the next backward.
  at::Tensor gradient(size_t parameter) const;
  int slots() const { return int(slots_.size()); }
  // Returns the moments of a slot.
  NamedTensors slot_moments(int slot) { return optimizer_->moments(slot); }
  at::Tensor slot_gradient(int slot) const { return mean(slots_[size_t(slot)].gradients); }

  // Sparse embeddings. Their values and moments are stale until `flush`.
  const std::vector<ParameterPtr>& tables() const { return tables_; }
  NamedTensors table_moments(size_t table) { return row_optimizer_->moments(int(table)); }
  at::Tensor table_gradient(size_t table) const;
  void flush();
  // Flushes, and copies values and moments in the same pass. The copies are valid until the next update or flush.
  void flush_and_copy();
  // Returns true if flush_and_copy has memory. Gets it once, if it is at most `most` bytes for each of the `ranks` that
  // share the tables. `agree` returns true if all of them pass true.
  bool prepare_copies(int64_t most, int ranks, const std::function<bool(bool)>& agree);
  // Returns the copy of a table's values (0) or of its moments (from 1); undefined if there is none.
  at::Tensor table_copy(size_t table, size_t tensor) const;
  bool table_stale(size_t table) const { return row_optimizer_->stale(int(table)); }
  void flush_rows(size_t table, const at::Tensor& rows) { row_optimizer_->flush_rows(int(table), rows); }

  const at::Tensor& count() const { return count_; }              // updates applied, int64 [1]
  int64_t made() const { return made_; }                          // number so far, with skipped ones
  const at::Tensor& header() const { return header_; }            // weight and sum of the loss in the last update
  const at::Tensor& local_count() const { return local_count_; }  // `count` of local slots; −1: equal to count()
  // Returns counters and the loss scaler's state, by name (`updates`, …).
  NamedTensors counters() const;
  void restored();                 // counters() were written to from outside
  void renumbered(int64_t steps);  // see Strategy

 private:
  // `first`: index in sums_ for the sum of squares.
  void add_sums(const at::Tensor& gradients, bool counted, int64_t first);
  std::unique_ptr<Optimizer> optimizer_for(const std::vector<UpdateSlot>& slots) const;
  // Returns gradients of the mean loss over all rows, before clipping; undefined before the first update.
  at::Tensor mean(const at::Tensor& gradients) const;
  static UpdateScalars scalars_on(at::Device device, const UpdateScalars& scalars);
  void update_slots();
  void next_rate();
  // Excuses non-finite gradients if a smaller loss scale may help; then adapts the scale.
  void excuse(const at::Tensor& loss_finite, UpdateStatistics& statistics);
  // Parts of `begin` and `finish` that compute with scalars on the CPU, or with tensors of the device.
  void begin_on_host(double nominal);
  UpdateStatistics finish_on_host();
  UpdateStatistics finish_on_device();
  bool is_local(size_t slot) const { return slot < local_only_.slots.size() && local_only_.slots[slot] != 0; }
  bool is_local_table(size_t table) const {
    return table < local_only_.tables.size() && local_only_.tables[table] != 0;
  }
  at::Tensor scale_of(const at::Tensor& header, double nominal) const;
  double host_scale_of(const at::Tensor& header, double nominal) const;
  double clipped_on_host(UpdateScalars& scalars, double squares) const;
  void clip(UpdateScalars& scalars, const at::Tensor& norm) const;

  Component section_;  // `optimizer` of the configuration
  OptimizerFactory factory_;
  std::unique_ptr<Optimizer> optimizer_;
  UpdateCount steps_;
  Schedule schedule_;
  std::optional<double> base_rate_;
  std::vector<CommunicatorPtr> cut_;
  double clip_norm_ = 0;                  // 0: no clipping
  const FlatParameters* flat_ = nullptr;  // null if the caller made the slots
  std::vector<UpdateSlot> slots_;
  std::unique_ptr<RowOptimizer> row_optimizer_;  // null without sparse embeddings
  std::vector<std::vector<at::Tensor>> copies_;  // by table, values first; empty: no memory for them
  bool copied_ = false;                          // copies_ are those of the current values
  bool copies_refused_ = false;                  // a rank got no memory
  std::vector<ParameterPtr> tables_;
  at::Tensor header_;
  std::optional<LossScaler> scaler_;
  int64_t updates_ = 0;  // updates with a learning rate, applied and skipped; index for the schedule
  int64_t made_ = 0;     // updates that the host has finished
  at::Tensor count_;
  // [3]: sum of squares, number of non-finite slots, and number of non-finite losses. [5] with local slots: their sum
  // of squares and number of non-finite slots.
  at::Tensor sums_;
  UpdateScalars scalars_;
  at::Tensor mean_scale_;  // factor from gradients to those of the mean loss; gradient_scale includes clipping too
  bool norm_known_ = true;
  bool rate_is_set_ = false;
  bool updated_ = false;    // the slots have the gradients of an update
  LocalOnly local_only_;    // its header is undefined until set_local_only
  bool has_local_ = false;  // some slot or table is local
  bool has_summed_ = true;  // some slot is not local, on this or other ranks
  at::Tensor local_count_;
  UpdateScalars local_scalars_;
};

}  // namespace convoy
