// What a checkpoint keeps of the data that its model was trained on (core/data/contents.h): an entry `data` in the manifest, and
// the lists of names, which may be long, in data.safetensors, as bytes and the end of each name.
#pragma once
#include <optional>
#include <string>

#include "core/checkpoint/manifest.h"
#include "core/data/contents.h"
#include "core/files.h"

namespace convoy {

// Writes the lists into `folder`, where there are any, and adds entry and file to the manifest. Nothing without a fingerprint.
void store_contents(const DataContents& contents, const std::string& folder, Manifest& manifest, FileSystem& files);

// Nothing for a checkpoint that was made without them. Error(corrupt_data) naming the file that is damaged.
std::optional<DataContents> stored_contents(const Manifest& manifest, const std::string& folder);

// The checkpoint that a run would go on from, found by one rank alone and before the ranks have met: its data must be known
// before a model is made. Only the manifest and the lists are read, and damaged ones are passed over; Checkpoints::newest and
// find decide, and say what is wrong.
struct ResumedData {
  std::string path;                      // of step-N
  std::optional<DataContents> contents;  // none: the checkpoint was made without
};
// `resume` as train.resume; `folder`: of the run.
std::optional<ResumedData> resumed_data(const std::string& resume, const std::string& folder);

}  // namespace convoy
