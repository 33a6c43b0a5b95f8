// Checkpoints of models that were trained by themselves, put together as the members of one ensemble. Without LibTorch but for
// the manifest's pieces; nothing is copied: the pieces stay in the files that have them.
#pragma once
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"

namespace convoy {

// Member k is what the step-N folder number k holds. The trainer's figures are those of the first, with an evaluation owed:
// nobody has evaluated the members together. Error(config) where they have made different numbers of steps, or one is itself
// an ensemble; Error(corrupt_data) as read_manifest_file.
Manifest joined(const std::vector<std::string>& step_folders);

}  // namespace convoy
