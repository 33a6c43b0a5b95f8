// What `convoy verify` has its runs do: the state after every update as a checkpoint with gradients, kept where this run is
// the reference, else held against the reference's and removed.
//
// Row tables are left behind as they are in training, so that what makes up for it is held against the reference too: their
// values and moments are compared after the last update, where they are settled, their gradients after each.
//
// Results go to FOLDER/differences.json, a list of StepDifferences (core/difference.h), written anew after each update, so
// that a run that fails later has told what it found.
// Threads: the rank's own; all ranks of the job call alike. Failure: what checkpoints throw.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/compare.h"
#include "core/context.h"
#include "core/strategy.h"

namespace convoy {

class Snapshots {
 public:
  // `request`: {"folder": where snapshots go, "reference": that of the reference's, "" for the reference itself, or a list with
  // the folder of each member's where this run is an ensemble; "shares": parts that the configured run cuts a global batch
  // into; "splits": it cuts the rows of an update, by these or by accumulation}.
  Snapshots(const Context& context, Strategy& strategy, const Json& request);
  // The reference tells `convoy verify` what is wrong with the loss, in FOLDER/loss_fault.txt.
  void note_loss_fault(const std::string& fault);
  // The reference tells `convoy verify`, by the file FOLDER/no_ragged_batch.txt, that all shares of all steps are equal.
  void note_no_ragged_batch();
  // Collective, after setup (0 steps done) and after each update, up to Context::total_steps.
  void take(int64_t steps_done);

 private:
  void note(const std::string& file, const std::string& text) const;
  void compare_step(int64_t steps_done);
  StateView of_reference(const std::string& folder, int64_t steps_done) const;

  const Context& context_;
  Strategy& strategy_;
  std::string folder_;
  std::vector<std::string> references_;  // none: this run is one; several: by member
  bool of_members_ = false;
  Checkpoints checkpoints_;
  std::set<std::string> behind_;  // keys of this step that are not compared
  Json differences_ = Json::array();
};

}  // namespace convoy
