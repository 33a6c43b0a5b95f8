// Checkpoints: safetensors files and a manifest, written whole or not at all.
//
// Layout: FOLDER/step-N/{manifest.json, rank-R.safetensors}, FOLDER/latest (a file naming the newest). A save goes to a
// temporary folder first; every file and the folder are fsynced; all ranks agree that theirs is whole; rank 0 writes the
// manifest and renames. Tensors of one file are written in the order of their keys: equal states give equal bytes.
// Restoring matches pieces by name: any layout reads what any other wrote.
// Threads: called by every rank's thread, the same call on all. Failure: Error(io) on all ranks alike with the first
// cause, the older checkpoint standing and nothing temporary left; Error(corrupt_data) naming the file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/shelf.h"
#include "core/context.h"
#include "core/data/dataset.h"
#include "core/options.h"
#include "core/strategy.h"

namespace convoy {

struct CheckpointInfo {
  std::string path;  // of step-N
  int64_t step = 0;  // steps done
  Json trainer;      // what the trainer wants back: step, epoch, sampler, best metrics, seed
  Json config;       // resolved configuration at the time of the save
  int member =
      -1;  // of an ensemble, that alone is to be loaded, under the names of a model by itself; -1: all there is
  // step-N folders of models that are to be loaded as the members of one ensemble, `path` being the first; else none.
  std::vector<std::string> members = {};
  std::string fingerprint = "";  // of the data that it was trained on; "": not known
};

class Checkpoints {
 public:
  // keep_last 0 keeps all. `files` outlives this object.
  Checkpoints(const Context& context, std::string folder, int64_t keep_last, FileSystem& files = system_files());

  // Collective. Owners write their pieces. `for_comparing` runs: those of gradients too, which nothing is resumed from, and
  // without what is behind. `own`: what this rank adds to the manifest's trainer section, under `ranks` by its number; null:
  // nothing. `data`: what the model is trained on, of which rank 0 keeps the contents; may be null.
  void save(Strategy& strategy, int64_t step, const Json& trainer, bool for_comparing = false, const Json& own = {},
            const Dataset* data = nullptr);
  // Collective. Newest complete and intact one, by rank 0's reading, told to all; a broken one is skipped with a warning
  // naming the file. Nothing where there are none at all; Error(corrupt_data) naming the file where all are broken.
  std::optional<CheckpointInfo> newest();
  // Collective. The checkpoint that a path names: a step-N folder, whose damage is an error, or a run folder (or its
  // checkpoints folder), whose newest intact one is taken; of the member that "@memberN" behind it names, if any. A farm's
  // folder stands for the newest ones of its pipelines, as members of one ensemble. Error(config) where there is none.
  CheckpointInfo find(const std::string& path);
  // Collective. Fills every tensor the strategy shows from the checkpoint's pieces, checked by hash; dtypes are
  // converted. Error(config) naming tensors that are missing, left over or of another shape. Entries of one `replica` are
  // filled by that one's pieces where the checkpoint has just the replicas that this run has, else by those that all have in
  // common, which a warning tells; what has no such pieces is left as it is.
  // Counters beside `updates` (the loss scaler's, early stopping's) may be missing on either side: they start anew. So do
  // moments of another optimizer, and `updates` with them; a note says so.
  // `data`: of this run, or null; Error(config) where the checkpoint has other numbers for its ids, classes or columns.
  void load(Strategy& strategy, const CheckpointInfo& info, const Dataset* data = nullptr);
  // True for a whole checkpoint in this object's folder.
  bool owns(const CheckpointInfo& info) const;

 private:
  std::optional<CheckpointInfo> newest_in(const std::string& folder);
  Json newest_of(const std::vector<std::string>& pipelines);

  const Context& context_;
  Shelf shelf_;
  int64_t keep_last_;
  FileSystem& files_;
};

// Without collectives, for tools and tests. Throws Error(corrupt_data) naming file and reason.
CheckpointInfo read_manifest(const std::string& step_folder);

}  // namespace convoy
