// The content of a checkpoint's files: pieces as they were written, and whole tensors assembled from pieces.
//
// Threads: one at a time. Ownership: the tensors keep the mapped files alive. Failure: Error(corrupt_data) naming the
// file that is damaged or contradicts the manifest.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "core/checkpoint/manifest.h"
#include "core/data/contents.h"
#include "core/data/dataset.h"
#include "core/files/files.h"
#include "core/tensors/compare.h"
#include "core/tensors/safetensors.h"

namespace convoy {

// Files of one checkpoint. Each is opened at its first use, and then checked by hash if `verify` is set. `manifest`
// outlives this object.
class StoredFiles {
 public:
  StoredFiles(const Manifest& manifest, std::string folder, bool verify = true)
      : manifest_(manifest), folder_(std::move(folder)), verify_(verify) {}

  // Returns a read-only tensor in the shape of its piece.
  at::Tensor tensor(const StoredPiece& stored);
  // Call it after each read of `bytes`: now and then it frees the memory of mapped pages. Views stay valid.
  void release(size_t bytes);
  // `name`: a file that the manifest lists.
  const SafetensorsFile& open(const std::string& name);

 private:
  const Manifest& manifest_;
  std::string folder_;
  bool verify_;
  std::map<std::string, SafetensorsFile> files_;
  size_t unreleased_ = 0;  // bytes read since the last release
};

// Returns the whole tensors of a step-N folder of any layout. A tensor in one piece is a view of the mapped file;
// others are assembled on request. The view owns everything that it needs. `member`: only this member of an ensemble,
// under the keys of a single model; Error(config) if it does not exist.
StateView stored_state(const std::string& step_folder, int member = -1);

// --- Contents of the training data (core/data/contents.h) ---
// The manifest has them in its entry `data`. The lists of names may be long, so they are in data.safetensors.

// Writes the lists, if any, into `folder`, and adds entry and file to the manifest. Writes nothing if the contents have
// no fingerprint.
void store_contents(const DataContents& contents, const std::string& folder, Manifest& manifest, FileSystem& files);

// Returns nullopt for a checkpoint without contents. Error(corrupt_data) names the damaged file.
std::optional<DataContents> stored_contents(const Manifest& manifest, const std::string& folder);

// --- Fields of the rows: a model can be made without its data set ---

Json to_json(const Schema& schema);
// Error(corrupt_data) naming `manifest`, its file, if the entry is no schema.
Schema schema_from_json(const Json& json, const std::string& manifest);

// --- Resuming ---

// Data contents of the checkpoint from which a run would resume. One rank reads them before the rendezvous, because the
// model depends on them. It reads only the manifest and the lists, and skips damaged ones: Checkpoints::newest and find
// report errors later.
struct ResumedData {
  std::string path;                      // path of step-N
  std::optional<DataContents> contents;  // nullopt: the checkpoint has none
};
// `resume`: the value of train.resume; `folder`: the run folder.
std::optional<ResumedData> resumed_data(const std::string& resume, const std::string& folder);

}  // namespace convoy
