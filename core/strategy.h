// Strategy: decides how many ranks train one model. This is the main seam of convoy.
//
// A Strategy owns this rank's part of the model and of the optimizer, and communicates through the communicators of
// the context. It can list all its state by name. The trainer, checkpoints, metrics and `verify` use only this
// interface. Plan and cost are pure functions next to the catalogue (strategies/plans/catalogue.h).
// Call order: sampling may be called before setup; then only `samples` is valid. Next comes setup, once; then sampling,
// step, evaluate (and evaluated), visit_state and flush in any order that is equal on all ranks of the job.
// Threads: one Strategy per rank, used only by the thread of that rank.
// Ownership: keeps the model and the arguments of setup. `visit_state` shows tensors that the strategy owns.
// Errors: CommError from communication, Error(training) from the model with block and step. After either, only
// destruction is allowed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/ensemble_members.h"
#include "core/batch.h"
#include "core/context.h"
#include "core/model_interface.h"
#include "core/state.h"

namespace convoy {

struct MetricValue;  // core/metrics/accumulator.h

// Share of each global batch that this rank reads. Ranks of one replica read the same share.
struct Sampling {
  int64_t index = 0;
  int64_t count = 1;          // data-parallel degree
  int64_t micro_batches = 1;  // micro-batches of the global batch; the rank reads its share of each
  int64_t members = 0;        // members that this rank trains now; 0: no ensemble, or all have finished
  // Row samples of these members: each trains on other rows, and training batches are [members, rows, …].
  // Evaluation batches have no member dimension: all members see the same rows.
  std::vector<MemberSample> samples = {};
  int64_t job_members = 0;  // members that the whole job trains now, for counts; 0: no ensemble
};

struct StepInput {
  Batch batch;         // this rank's share
  int64_t step = 0;    // global, from 0: keys random draws and schedules
  bool flush = false;  // last step of an epoch or of the training: accumulation ends here
  // This step is logged, so computing the gradient norm may cost a collective. Equal on all ranks.
  bool log_step = true;
};

// Tensors on the device of the rank, not copied to the host. If several ranks compute the same metric, one reports it
// and the others report weight and sum zero. So sums over all ranks are the metrics of the job.
struct StepResult {
  std::vector<Metric> metrics;  // "loss" first; for the rows of this rank
  at::Tensor finite;            // bool, [] or [members]; false: not finite, nothing was updated; equal on all ranks
  at::Tensor skipped;           // same shape: the loss scaler skipped this update; undefined without a scaler
  at::Tensor gradient_norm;     // [] or [members], before clipping; undefined without an update or if not computed
  at::Tensor learning_rate;  // [1] or [members]: rate of this update, before group factors; valid until the next update
  bool updated = true;       // false on the accumulating steps between two updates
};

// Optional interface of a strategy: evaluates ensemble members on the folds that they leave out, and resets their early
// stopping. Call order, threads, errors: as for Strategy::evaluate.
class HeldOutEvaluation {
 public:
  virtual ~HeldOutEvaluation() = default;

  // Returns the row samples of all members of this rank, including members that have finished.
  virtual std::vector<MemberSample> samples() const = 0;
  // Returns loss and metrics of each member on its held-out rows, in the form of `evaluate`. Input tensors are
  // [members, rows, …]. No gradient, no dropout.
  virtual std::vector<Metric> evaluate_held_out(const Batch& batch) = 0;
  // Called after Strategy::state_restored if later metrics cannot be compared with those before the checkpoint, because
  // the data, the loss or the watched metric differ. Early stopping then starts again.
  virtual void metrics_changed() = 0;
};

// Optional interfaces of a strategy. A pointer is null, or valid as long as the strategy.
struct StrategyCapabilities {
  HeldOutEvaluation* held_out_evaluation = nullptr;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Builds this rank's part with its initial values. `loss` is the configured loss or the default of the model.
  virtual void setup(const Context& context, ModelPtr model, LossPtr loss) = 0;
  // Before setup only `samples` is valid; they determine how many rows a member reads in an epoch.
  virtual Sampling sampling() const = 0;

  // Runs forward, backward, communication and update.
  virtual StepResult step(const StepInput& input) = 0;
  // Returns loss and metrics of this share; no gradient, no dropout. The share may have 0 rows.
  virtual std::vector<Metric> evaluate(const Batch& batch) = 0;

  // Applies postponed work (averages, catch-up of rows). Called before checkpoints and before verify compares states.
  virtual void flush() = 0;
  // As `flush`, before a save in the background. May copy state in the same pass (StateEntry::copy) if the copies take
  // at most `most` bytes. The caller no longer reads earlier copies.
  virtual void flush_and_copy(int64_t /*most*/) { flush(); }
  // Applies only the work that `evaluate` needs. Rows of sparse embeddings may stay stale: look-ups catch up without
  // writing. So the result of a run does not depend on how often it is evaluated.
  virtual void flush_for_evaluation() { flush(); }
  // Receives the metrics of the job after an evaluation, equal on all ranks. `sampling` may change (an ensemble
  // member may have finished). Returns true, on all ranks, if nothing is left to train.
  virtual bool evaluated(const std::map<std::string, MetricValue>& metrics) = 0;
  // Calls back for each piece of state of this rank, in the same order each time.
  virtual void visit_state(const StateVisitor& visit) = 0;
  // Calls back for each mean gradient of the last update. `verify` and histograms use it; it copies the gradients.
  virtual void visit_gradients(const StateVisitor& /*visit*/) {}
  // Called after something wrote to the tensors of visit_state, such as loading a checkpoint.
  virtual void state_restored() = 0;
  // Called after state_restored if this run numbers its steps differently from the checkpoint, as with another batch
  // size. `steps`: steps done in the new numbering; schedules continue there. The number of updates stays.
  virtual void renumbered(int64_t /*steps*/) {}
  // Optional interfaces that this strategy implements.
  virtual StrategyCapabilities capabilities() { return {}; }
};

}  // namespace convoy
