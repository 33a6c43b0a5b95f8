// Checkpoints: safetensors files and a manifest, written completely or not at all.
//
// Layout: FOLDER/step-N/{manifest.json, rank-R.safetensors}, and FOLDER/latest, a file that names the newest.
// A save writes to a temporary folder and fsyncs every file and the folder. When all ranks agree that their files are
// complete, rank 0 writes the manifest and renames the folder. Tensors of one file are sorted by key, so equal states
// give equal bytes. Restoring matches pieces by name: any layout reads the checkpoints of any other.
// Threads: called by every rank's thread, the same call on all.
// Failure: Error(io) on all ranks with the first cause; older checkpoints stay, and no temporary files remain.
// Error(corrupt_data) names the file.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/checkpoint_directory.h"
#include "core/context.h"
#include "core/data/dataset.h"
#include "core/strategy.h"

namespace convoy {

struct CheckpointInfo {
  std::string path;  // path of step-N
  int64_t step = 0;  // steps done
  Json trainer;      // the trainer's state: step, epoch, sampler, best metrics, seed
  Json config;       // resolved configuration at the time of the save
  int member = -1;   // load only this member of an ensemble, under the names of a single model; -1: load all
  // step-N folders to load as the members of one ensemble; `path` is the first. Empty: load `path` alone.
  std::vector<std::string> members = {};
  // Identifies the data that the model was trained on.
  std::string fingerprint = "";  // "": unknown
  int64_t data_rows = 0;
};

// Data of one save, in addition to the strategy's state.
struct SaveRequest {
  int64_t step = 0;               // steps done
  Json trainer;                   // the trainer's section of the manifest
  Json rank_state = {};           // additions of this rank to that section, under `ranks` by rank number; null: none
  const Dataset* data = nullptr;  // rank 0 records its contents and fields; may be null. It outlives the save
  bool best = false;              // the checkpoint is kept until another one is the best
};

class Checkpoints {
 public:
  // keep_last 0 keeps all. `files` outlives this object.
  Checkpoints(const Context& context, std::string folder, int64_t keep_last, FileSystem& files = system_files());
  // Waits launch.failure_grace for a save in the background, then cancels it. A cancelled save ends at its next wait
  // for other ranks, and rank 0 removes its temporary files.
  ~Checkpoints();

  // Collective. Owners write their pieces. `for_comparing` (convoy verify): also writes gradients and stale entries.
  void save(Strategy& strategy, const SaveRequest& request, bool for_comparing = false);
  // Collective. Waits for an earlier save, copies this rank's pieces into host memory and returns; a thread writes the
  // copy. Training may continue meanwhile. The copy's memory is kept for the next save. If no thread can be started, if
  // there is no memory, or if the copy is larger than `most_bytes`, this rank writes before it returns.
  // Cf. CheckFreq (Mohan et al., FAST 2021): snapshot, then persist.
  void save_in_background(Strategy& strategy, const SaveRequest& request, int64_t most_bytes);
  // Throws the failure of a save in the background, once, if it has ended. Does not wait.
  void check_background();
  // Waits for the save in the background, and throws its failure.
  void wait_for_background();
  bool in_background() const { return background_ != nullptr; }  // true until a save is known to be complete

  // Collective. Returns the newest complete and intact checkpoint; rank 0 reads and broadcasts the result. Skips a
  // broken one with a warning that names the file. Returns nullopt if there are no checkpoints. Error(corrupt_data) if
  // all are broken. `to_train`: skips also states that `convoy verify` compares, which no step can follow.
  std::optional<CheckpointInfo> newest(bool to_train = false);
  // Collective. Returns the checkpoint at `path`: a step-N folder, or the newest intact one of a run folder or its
  // checkpoints folder. A damaged step-N folder is an error. A suffix "@memberN" selects one member of an ensemble. The
  // folder of a farm means the newest checkpoints of its pipelines, as members of one ensemble.
  // Error(config) if there is no checkpoint.
  CheckpointInfo find(const std::string& path);
  // Collective. Fills every tensor of the strategy's state from the checkpoint's pieces. Checks their hashes and
  // converts dtypes. Error(config) names tensors that are missing, unused or of a different shape.
  // If the checkpoint has the same replicas as this run, each entry is filled by its replica's pieces. Otherwise
  // entries are filled by the pieces that all replicas have in common, with a warning; entries without such pieces keep
  // their values. Counters other than `updates` (loss scaling, early stopping) may be missing on either side; they then
  // start again. Moments of a different optimizer start again too, together with `updates`; the log notes it.
  // `data`: the data set of this run, or null. Error(config) if the checkpoint numbers its ids, classes or columns
  // differently.
  void load(Strategy& strategy, const CheckpointInfo& info, const Dataset* data = nullptr);
  // True for a complete checkpoint in this object's folder.
  bool owns(const CheckpointInfo& info) const;

 private:
  struct Save;        // a save; has the entries to write
  struct Background;  // the thread of a save
  void finish(Save& save);
  bool copy(std::vector<StateEntry>& entries);
  Json newest_of(const std::vector<std::string>& pipelines);

  const Context& context_;
  CheckpointDirectory directory_;
  int64_t keep_last_;
  FileSystem& files_;
  std::vector<at::Tensor> copies_;  // copies of this rank's pieces, for saves in the background
  std::unique_ptr<Background> background_;
};

// --- Not collective: for one process ---

// Throws Error(corrupt_data) naming file and reason.
CheckpointInfo read_manifest(const std::string& step_folder);
// Returns the step-N folder at `path`, checked, or the newest intact one of a run folder or its checkpoints folder.
// `key`: the user's key, for messages: "train.resume". Error(config) if there is none, and for the folder of a farm.
// Error(corrupt_data) if all are broken.
std::string intact_checkpoint(const std::string& path, const std::string& key, FileSystem& files = system_files());
// The checkpoint that a user of a trained run means: as intact_checkpoint, but a damaged newest one is an error too,
// with the names of older ones. An older model is used only if the user names it.
std::string named_checkpoint(const std::string& path, const std::string& key);

}  // namespace convoy
