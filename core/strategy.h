// Strategy: decides how one model is trained by many ranks. This is convoy's main seam.
//
// Role: owns this rank's part of the model and of the optimizer, talks to other ranks through the context's
// communicators, and can name every piece of state it holds. The trainer, checkpoints, metrics, `explain` and `verify`
// use only this. Where (plan) and cost are pure functions beside the catalogue (strategies/catalogue.h).
// Call order: setup once; then step, evaluate (and evaluated), visit_state, settle in any order, the same on all ranks of
// the job.
// Threads: one Strategy per rank, used by that rank's thread only.
// Ownership: keeps the model and what setup gave it; `visit_state` shows tensors that stay the strategy's.
// Failure: CommError from communication, Error(training) from the model with block and step; after either, only
// destruction is allowed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/context.h"
#include "core/member_draw.h"
#include "core/model_interface.h"
#include "core/state.h"

namespace convoy {

struct MetricValue;  // core/metrics/accumulator.h

// Which share of each global batch this rank reads. Ranks that hold parts of one replica read the same share.
struct Sampling {
  int64_t index = 0;
  int64_t count = 1;          // data-parallel degree
  int64_t micro_batches = 1;  // slices of the global batch, of each of which the rank reads its share
  int64_t members = 0;        // members of an ensemble that this rank trains now; 0: no ensemble, or all have finished
  // Of those members, one each: they draw their own rows, and training batches are [members, rows, …]. Evaluation batches
  // have no members: all see the same rows.
  std::vector<MemberDraw> draws = {};
  int64_t job_members = 0;  // members that the whole job trains now, for what is counted; 0: no ensemble
};

struct StepInput {
  Batch batch;         // this rank's share
  int64_t step = 0;    // global, from 0: keys random draws and schedules
  bool flush = false;  // last step of an epoch or of the training: accumulation ends here
  bool told =
      true;  // its figures are: a gradient norm that takes an exchange of its own is worth it; on all ranks alike
};

// Tensors on the rank's device, not read to the host. A rank whose figures are another's copy gives weight and sum zero,
// so that sums over all ranks are the job's figures.
struct StepResult {
  std::vector<Metric> metrics;  // "loss" first; of this rank's rows
  at::Tensor finite;   // bool, [] or [members]: false is a fault, and nothing was updated; the same on all ranks
  at::Tensor skipped;  // the same shape: the loss scaler left this update out; undefined without a scaler
  at::Tensor
      gradient_norm;  // [] or [members], before clipping; undefined on steps without an update, or where not told
  at::Tensor learning_rate;  // [1] or [members], of that update, before factors of groups; valid until the next one
  bool updated = true;       // false on accumulation's steps between
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Builds this rank's part with its initial values; `loss` was chosen by the configuration or is the model's own.
  virtual void setup(const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) = 0;
  // Before setup only `draws` counts: how many rows a member reads in an epoch, whichever it is.
  virtual Sampling sampling() const = 0;

  // Forward, backward, communication, update.
  virtual StepResult step(const StepInput& input) = 0;
  // Loss and the model's metrics of this share; no gradient, no dropout. Rows may be 0.
  virtual std::vector<Metric> evaluate(const Batch& batch) = 0;

  // Forces what was postponed (averages, row catch-up). Called before checkpoints, and before verify compares what it shows.
  virtual void settle() = 0;
  // What of it `evaluate` needs. Rows of tables may stay behind, which lookups make up for without writing: so that what
  // a run comes to does not depend on how often it is evaluated.
  virtual void settle_for_evaluation() { settle(); }
  // The job's figures of an evaluation, on all ranks the same. What `sampling` says may be another thing afterwards (a
  // member of an ensemble may have finished). True: nothing is left to train, on all ranks alike.
  virtual bool evaluated(const std::map<std::string, MetricValue>& figures) = 0;
  // Calls back for each piece of state this rank holds, in the same order each time.
  virtual void visit_state(const StateVisitor& visit) = 0;
  // Tensors shown by visit_state were written to from outside (a checkpoint was loaded).
  virtual void state_restored() = 0;
  // Called after state_restored when this run numbers its steps in another way than the checkpoint, as with another batch
  // size. `steps` are done in the new numbers; schedules go on from there. Counts of updates made stay as they are.
  virtual void renumbered(int64_t /*steps*/) {}
};

}  // namespace convoy
