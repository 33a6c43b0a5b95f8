// Filling tensors from a checkpoint's pieces.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/pieces.h"
#include "core/state.h"

namespace convoy {

const char* dtype_text(at::ScalarType dtype);  // "float32", as Python says it

// Error(config) naming the keys that a strategy wants and the checkpoint lacks, or the other way round.
void check_names(const Manifest& manifest, const std::set<std::string>& wanted, const std::string& path);

// Writes every entry's tensor, in its dtype and on its device. Only files that are needed are read, each checked by its
// hash first. Error(config) for another global shape, Error(corrupt_data) for a damaged or contradictory file; then
// entries before it have been written to.
void restore(const std::vector<StateEntry>& entries, const Manifest& manifest, const std::string& path);

}  // namespace convoy
