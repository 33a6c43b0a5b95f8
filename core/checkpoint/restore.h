// Filling tensors from a checkpoint's pieces.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/state.h"

namespace convoy {

// --- Checkpoints of single models, joined as the members of one ensemble ---

// Member k is the content of step-N folder k. Nothing is copied: the pieces stay in their files. The trainer section is
// that of the first folder. It schedules an evaluation, because the members have not been evaluated together.
// Error(config) if step numbers differ or a folder contains an ensemble; Error(corrupt_data) as read_manifest_file.
Manifest joined(const std::vector<std::string>& step_folders);

// MomentChange: differences between the optimizer's moments in a checkpoint and those of a run.
//
// Moments that the checkpoint lacks keep their initial value, zero. Then updates are counted from zero too, because
// Adam corrects the bias of its moments by that count. Moments that the run does not need are ignored.
struct MomentChange {
  std::set<std::string> missing, unused;  // names: exp_avg, momentum, …

  // Both functions take keys as StateEntry::key returns them.
  bool resets(const std::string& key) const;
  bool ignores(const std::string& key) const;            // starts again, or is unused
  void erase_from(std::set<std::string>& wanted) const;  // removes the keys that start again

  std::vector<std::string> notes(const std::string& checkpoint) const;  // for the log
};

MomentChange moment_change(const std::set<std::string>& stored,
                           const std::vector<const std::set<std::string>*>& wanted);

const char* dtype_text(at::ScalarType dtype);  // "float32", as in Python

std::set<std::string> keys_of(const Manifest& manifest);

// Error(config) names the keys that a strategy needs and the checkpoint lacks, or the reverse.
void check_names(const Manifest& manifest, const std::set<std::string>& wanted, const std::string& path);

// Writes every entry's tensor, in its dtype and on its device. Reads only the files that are needed, and checks the
// hash of each first. Error(config) for a different global shape; Error(corrupt_data) for a damaged or contradictory
// file. Entries before the error are written already.
void restore(const std::vector<StateEntry>& entries, const Manifest& manifest, const std::string& path);

class StoredFiles;  // core/checkpoint/stored_files.h
// Writes one entry's tensor from all stored pieces of its key.
void fill_entry(const StateEntry& entry, const std::vector<const StoredPiece*>& stored, StoredFiles& files,
                const std::string& path);

}  // namespace convoy
