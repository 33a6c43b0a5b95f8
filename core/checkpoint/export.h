// Export of a checkpoint's parameters and buffers to files in safetensors, with Python's names and layouts.
//
// Tensors are read, converted and written one by one, so the largest one determines the memory. All files are written
// to a temporary folder next to the destination, which is renamed when they are on the disk.
// Threads: one process, one thread. Failure: Error(output) if the destination exists; Error(config) for a run that
// cannot be exported; Error(corrupt_data) for a damaged checkpoint; Error(io) after removing all temporary files.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "core/base/options.h"
#include "core/checkpoint/weight_names.h"
#include "core/config/run_config.h"
#include "core/files/files.h"

namespace convoy {

struct ExportRequest {
  std::string run;           // run folder, checkpoint, or one of them with @memberN
  std::string to;            // folder to write
  bool with_config = false;  // also config.json and the tokenizer, for transformers
  bool replace = false;      // replace an earlier export in that folder
  int64_t file_bytes = 0;    // largest size of a file; a larger tensor gets a separate file
};
CONVOY_JSON(ExportRequest, run, to, with_config, replace, file_bytes)

// Returns {"checkpoint", "step", "tensors", "bytes", "files": names, "notes": lines}.
Json export_weights(const ExportRequest& request, const std::function<WeightNames(const Component& model)>& names_of,
                    FileSystem& files = system_files());

}  // namespace convoy
