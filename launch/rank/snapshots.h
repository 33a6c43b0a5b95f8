// Snapshots for `convoy verify`: after every update the state with gradients is saved as a checkpoint. The reference
// run keeps them. The configured run compares its snapshots with the reference's and removes both.
//
// Sparse embeddings stay stale as in training, so that catch-up is compared too. Their gradients are compared after
// every update; their values and moments after the last one, when they are flushed.
//
// Results go to FOLDER/differences.json, a list of StepDifferences (core/base/difference.h). It is rewritten after each
// update, so that a run that fails later leaves its results.
// Threads: the rank's thread; collective over the job. Failure: exceptions of checkpoints.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/checkpoint/checkpoint.h"
#include "core/context.h"
#include "core/strategy.h"
#include "core/tensors/compare.h"

namespace convoy {

class Snapshots {
 public:
  // `request` has these fields. "folder": folder of the snapshots. "reference": the reference's folder, "" for the
  // reference itself, or a list of one folder per member for an ensemble. "shares": number of shares of a global batch
  // in the configured run. "splits": true if that run splits the rows of an update, by shares or gradient accumulation.
  Snapshots(const Context& context, Strategy& strategy, const Json& request);
  // Reports an error of the loss to `convoy verify`, in FOLDER/loss_fault.txt. Used by the reference.
  void note_loss_fault(const std::string& fault);
  // Reports that all shares of all steps are equal, by the file FOLDER/no_uneven_batch.txt. Used by the reference.
  void note_no_uneven_batch();
  // Collective. Call it after setup (0 steps) and after each update, up to Context::total_steps.
  void take(int64_t steps_done);

 private:
  void note(const std::string& file, const std::string& text) const;
  void compare_step(int64_t steps_done);
  StateView reference_state(const std::string& folder, int64_t steps_done) const;

  const Context& context_;
  Strategy& strategy_;
  std::string folder_;
  std::vector<std::string> references_;  // empty: this run is the reference; several: by member
  bool ensemble_ = false;
  Checkpoints checkpoints_;
  std::set<std::string> stale_;  // keys that are not compared after this step
  Json differences_ = Json::array();
};

}  // namespace convoy
