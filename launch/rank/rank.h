// Runs the ranks of one rank process as threads, from the rank assignment to the results. Before and during a training:
// the data check of all processes, and snapshots for `convoy verify`.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "api/rank_process.h"
#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/control/channel.h"
#include "core/data/dataset.h"
#include "core/registry.h"
#include "core/strategy.h"
#include "core/tensors/compare.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// --- Ranks of this process (rank.cpp) ---

// Result of describe_blocks.
struct DescribedBlocks {
  ModelDescription model;  // the model that the configuration creates for its data set
  std::string unmeasured;  // why activations were not measured although requested; "" otherwise
  std::string advice;      // about the evaluation of the data; "" if there is none
};
// With `activations`, also measures saved activations and outputs of each block, by a step with fake tensors. A model
// that does not support them runs for real if it is small.
DescribedBlocks describe_blocks(const RunConfig& config, const Registry& registry, bool activations);

// Trains, or runs the requested benchmark or use of a trained model, on all ranks of this process. Returns the
// process's exit code; failures have been reported over the channel.
int run_ranks(RankProcess& process, const Registry& registry);

// --- Data check: all processes of a job train on the same data set (data_check.cpp) ---
//
// The process of rank 0 compares it with the checkpoint from which the run resumes, and decides. The other processes
// check that their data is equal, and follow.
//
// Each process calls it once, before it creates the model; it returns when all processes have read their data. A
// process that joins a running job waits for no other. With other numbers for users, items or classes, parameters would
// get other shapes or belong to other ids. Failure: ConfigError at data.path. Kinds: `config` for a checkpoint that
// train.resume names, `output` for a checkpoint in the run folder, `disagreement` for a host with other data.
struct DataCheck {
  const RunConfig& config;
  std::string folder;  // run folder
  int process = 0, processes = 1;
  bool first = true;  // this process has rank 0
  std::string host;   // host of this process
  Channel* channel = nullptr;
  Json decided = {};   // protocol::checked_data of the job that this process joins; null: the processes decide
  bool trains = true;  // false: a command uses the trained run, and other data is the user's intention
};

// Returns `data` itself, or the same rows with the checkpoint's numbers for ids and classes.
DatasetPtr check_data(const DatasetPtr& data, const DataCheck& check);

// Throws ConfigError at data.path, or at `data` for a data set without this key.
[[noreturn]] void refuse_data(const RunConfig& config, const std::string& reason, Failure kind = Failure::config);

// --- Snapshots for `convoy verify` (snapshots.cpp) ---
//
// After every update the state with gradients is saved as a checkpoint. The reference run keeps them. The configured
// run compares its snapshots with the reference's and removes both.
//
// Sparse embeddings stay stale as in training, so that catch-up is compared too. Their gradients are compared after
// every update; their values and moments after the last one, when they are flushed.
//
// Results go to FOLDER/differences.json, a list of StepDifferences (core/base/difference.h). It is rewritten after each
// update, so that a run that fails later leaves its results.
// Threads: the rank's thread; collective over the job. Failure: exceptions of checkpoints.
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
