// What a checkpoint's files hold: pieces as they were written, and whole tensors put together from them.
//
// Threads: one at a time. Ownership: the tensors keep the mapped files alive. Failure: Error(corrupt_data) naming the file
// that is damaged, or that is not what the manifest says.
#pragma once
#include <map>
#include <string>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/compare.h"

namespace convoy {

// The files of one checkpoint, opened and checked by hash when first needed. `manifest` outlives this object.
class StoredFiles {
 public:
  StoredFiles(const Manifest& manifest, std::string folder) : manifest_(manifest), folder_(std::move(folder)) {}

  // In the shape of its piece; read-only.
  at::Tensor tensor(const StoredPiece& stored);
  // One of the files that the manifest lists.
  const SafetensorsFile& open(const std::string& name);

 private:
  const Manifest& manifest_;
  std::string folder_;
  std::map<std::string, SafetensorsFile> files_;
};

// A step-N folder as whole tensors, whatever layout wrote it: one that a single piece holds is the mapped file itself, others
// are put together when they are asked for. The view owns all it needs. member: of an ensemble, that one alone, under the keys
// that it would have by itself; Error(config) where there is none of that number.
StateView stored_state(const std::string& step_folder, int member = -1);

}  // namespace convoy
